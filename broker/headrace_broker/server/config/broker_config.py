"""Reads a broker's `.properties` file into a checked `BrokerConfig`.

Owns the file format, the listener syntax and the cross-checks. An unknown setting is an error that
names the nearest known setting: a typo must not silently become a default.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from headrace_broker.metadata.settings.kafka_names import (
    DYNAMIC_KAFKA_SETTINGS,
    FIXED_KAFKA_SETTINGS,
)
from headrace_broker.metadata.settings.topic_config import broker_topic_settings
from headrace_broker.protocol.types import NodeId
from headrace_broker.server.config.quorum_config import QuorumConfig, read_quorum
from headrace_broker.server.config.settings import BROKER_SETTINGS

PORT_MAX = 65535
_SECURITY = ("authorizer.", "delegation.", "password.", "principal.", "sasl.", "security.", "ssl.")
# Kafka's EnvVarConfigProvider (KIP-887), with config.providers=env.
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


class ConfigError(Exception):
    """Everything wrong with a settings file, one line per problem; nothing was started."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Listener:
    """One address: its name, the host (empty: all addresses), the port (0: any free one)."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """A checked configuration. `values` holds every setting, typed, by Kafka's name."""

    values: Mapping[str, Any]
    static: Mapping[str, str]  # the file's settings as text, for the sources in DescribeConfigs
    node_id: NodeId
    roles: frozenset[str]
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    advertised_controllers: tuple[Listener, ...]
    controller_listener_names: tuple[str, ...]
    log_directories: tuple[Path, ...]
    metadata_log_directory: Path
    rack: str | None
    quorum: QuorumConfig
    http_listener: tuple[str, int] | None

    @property
    def without_meaning(self) -> list[str]:
        """Settings in the file that Kafka knows but that have no effect here."""
        return sorted(
            name for name in self.static if name not in self.values and has_no_meaning(name)
        )

    @property
    def is_broker(self) -> bool:
        """Whether this process serves clients."""
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        """Whether this process may lead the metadata quorum."""
        return "controller" in self.roles

    @property
    def inter_broker_listener(self) -> str:
        """The listener that brokers use among themselves."""
        return str(self.values["inter.broker.listener.name"] or self.advertised_listeners[0].name)


def read_config(path: Path) -> BrokerConfig:
    """Read and check the file at `path`; raise ConfigError with every problem found."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {error}"]) from error
    return parse_config(text, source=str(path))


def parse_config(text: str, *, source: str = "settings") -> BrokerConfig:
    """Parse properties `text`; `source` names it in errors."""
    static, problems = parse_properties(text, source)
    static = _with_environment(static, source, problems)
    values = _typed_values(static, source, problems)
    if problems:
        raise ConfigError(problems)
    config = _build(values, static, source, problems)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def parse_properties(text: str, source: str) -> tuple[dict[str, str], list[str]]:
    """Return the settings in a Java properties text, and the problems in its lines."""
    static: dict[str, str] = {}
    problems: list[str] = []
    lines = enumerate(text.splitlines(), start=1)
    for number, raw in lines:
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        while line.endswith("\\"):
            number_and_next = next(lines, None)
            line = line[:-1] + (number_and_next[1].strip() if number_and_next else "")
        name, separator, value = line.partition("=")
        name = name.strip()
        if not separator:
            problems.append(f"{source}:{number}: {line!r} is not name=value")
        elif name in static:
            problems.append(f"{source}:{number}: {name} is set twice; keep one")
        else:
            static[name] = value.strip()
    return static, problems


def _with_environment(static: dict[str, str], source: str, problems: list[str]) -> dict[str, str]:
    """Substitute environment variables if the file asks: a pod gets its node id only there."""
    if "env" not in static.get("config.providers", "").split(","):
        return static

    def variable(name: str, match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if value is None:
            problems.append(f"{source}: {name}: there is no environment variable {match[1]}")
        return value or ""

    return {
        name: _VARIABLE.sub(lambda match, name=name: variable(name, match), text)  # type: ignore[misc]  # mypy cannot type defaults of a lambda
        for name, text in static.items()
    }


def _typed_values(static: Mapping[str, str], source: str, problems: list[str]) -> dict[str, Any]:
    values = {name: setting.default for name, setting in BROKER_SETTINGS.items()}
    topic_text: dict[str, str] = {}
    topic_names = broker_topic_settings()
    for name, text in static.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is None and name in topic_names:
            topic_text[name] = text
            continue
        if setting is None:
            if not has_no_meaning(name):
                problems.append(f"{source}: {_unknown(name, [*BROKER_SETTINGS, *topic_names])}")
            continue
        try:
            values[name] = setting.parse(text)
        except ValueError as error:
            problems.append(f"{source}: {name}={text}: {error}")
    for name, parse in topic_names.items():
        if name in topic_text:
            try:
                values[name] = parse(topic_text[name])
            except ValueError as error:
                problems.append(f"{source}: {name}={topic_text[name]}: {error}")
    problems.extend(
        f"{source}: {setting.name} is required: {setting.doc}"
        for setting in BROKER_SETTINGS.values()
        if setting.required and values[setting.name] is None and setting.name != "log.dirs"
    )
    return values


def has_no_meaning(name: str) -> bool:
    """Whether Kafka knows a setting that has no effect here.

    Security settings are not among these: accepting them without effect would be deceptive.
    """
    is_known = name in FIXED_KAFKA_SETTINGS or name in DYNAMIC_KAFKA_SETTINGS
    return is_known and not name.startswith(_SECURITY)


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = (
        f"; did you mean {near[0]}?" if near else "; see docs/configuration.md for those that exist"
    )
    return f"{name} is not a setting that this broker knows{hint}"


def _build(
    values: dict[str, Any], static: Mapping[str, str], source: str, problems: list[str]
) -> BrokerConfig | None:
    directories = values["log.dirs"] or ([values["log.dir"]] if values["log.dir"] else [])
    if not directories:
        problems.append(
            f"{source}: log.dirs is required: name at least one directory for the partitions"
        )
    if len(set(map(Path, directories))) < len(directories):
        problems.append(f"{source}: log.dirs names a directory twice")
    listeners = _listeners(values, "listeners", problems, source)
    controllers = tuple(values["controller.listener.names"])
    client_listeners = tuple(item for item in listeners if item.name not in controllers)
    if "broker" in values["process.roles"] and not client_listeners:
        problems.append(f"{source}: listeners names no listener for clients beside {controllers}")
    advertised = (
        _listeners(values, "advertised.listeners", problems, source)
        if values["advertised.listeners"]
        else client_listeners
    )
    _check_advertised(advertised, listeners, problems, source)
    advertised_controllers = tuple(item for item in advertised if item.name in controllers)
    advertised = tuple(item for item in advertised if item.name not in controllers)
    quorum = read_quorum(values, {item.name for item in listeners}, problems, source)
    http_listener = _http_listener(values["headrace.http.listener"], problems, source)
    bound = [(f"listeners: {item.name}", item.host, item.port) for item in listeners]
    if http_listener is not None:
        bound.append(("headrace.http.listener", *http_listener))
    _check_ports(bound, problems, source)
    if problems:
        return None
    return BrokerConfig(
        values=values,
        static=static,
        node_id=NodeId(values["node.id"]),
        roles=frozenset(values["process.roles"]),
        listeners=listeners,
        advertised_listeners=tuple(_with_host(item) for item in advertised),
        advertised_controllers=advertised_controllers,
        controller_listener_names=controllers,
        log_directories=tuple(Path(item) for item in directories),
        metadata_log_directory=Path(values["metadata.log.dir"] or directories[0]),
        rack=values["broker.rack"],
        quorum=quorum,
        http_listener=http_listener,
    )


def _listeners(
    values: Mapping[str, Any], setting: str, problems: list[str], source: str
) -> tuple[Listener, ...]:
    protocols = dict(
        item.split(":", 1) for item in values["listener.security.protocol.map"] if ":" in item
    )
    found: list[Listener] = []
    for text in values[setting]:
        name, separator, address = text.partition("://")
        host, _, port = address.rpartition(":")
        if not separator or not port.isdigit() or int(port) > PORT_MAX:
            problems.append(
                f"{source}: {setting}={text}: write NAME://host:port, with a port up to 65535"
            )
            continue
        protocol = protocols.get(name, name)
        if protocol != "PLAINTEXT":
            problems.append(
                f"{source}: {setting}={text}: the security protocol {protocol} is not served yet; "
                "use PLAINTEXT, or map the name in listener.security.protocol.map"
            )
        found.append(Listener(name=name, host=host.strip("[]"), port=int(port)))
    names = [item.name for item in found]
    problems.extend(
        f"{source}: {setting} names {name} twice" for name in set(names) if names.count(name) > 1
    )
    return tuple(found)


def _check_advertised(
    advertised: tuple[Listener, ...], bound: tuple[Listener, ...], problems: list[str], source: str
) -> None:
    names = {item.name for item in bound}
    for item in advertised:
        if item.name not in names:
            problems.append(
                f"{source}: advertised.listeners names {item.name}, which listeners does not bind"
            )
        if _is_wildcard(item.host) and item.host:
            problems.append(
                f"{source}: advertised.listeners: clients cannot reach {item.host}; name a host"
            )


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _with_host(listener: Listener) -> Listener:
    if listener.host:
        return listener
    return Listener(
        name=listener.name, host="localhost", port=listener.port, protocol=listener.protocol
    )


def _http_listener(text: str | None, problems: list[str], source: str) -> tuple[str, int] | None:
    if text is None:
        return None
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > PORT_MAX:
        problems.append(
            f"{source}: headrace.http.listener={text}: write host:port, with a port up to 65535"
        )
        return None
    return host.strip("[]"), int(port)


def _check_ports(bound: list[tuple[str, str, int]], problems: list[str], source: str) -> None:
    """Report two settings whose (host, port) one process cannot bind both."""
    for (first, host, port), (second, other, other_port) in combinations(bound, 2):
        is_same_host = host == other or _is_wildcard(host) or _is_wildcard(other)
        if port == other_port != 0 and is_same_host:
            problems.append(f"{source}: {first} and {second} both listen on port {port}")
