"""Profiles: names for clusters that are neither of this machine nor of the current context.

# ~/.config/headrace/profiles.yaml, or the file that HEADRACE_PROFILES names
profiles:
  edge: {bootstrapServers: "kafka-1.example:9092,kafka-2.example:9092"}
  work: {context: work, namespace: streams, cluster: main}
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace_cli.errors import BadInputError

__all__ = ["Profile", "read_profile", "selected", "use"]

_FIELDS = {
    "bootstrapServers": "bootstrap_servers",
    "context": "context",
    "namespace": "namespace",
    "cluster": "cluster",
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Brokers' addresses, or a Cluster in Kubernetes."""

    name: str
    bootstrap_servers: str | None = None
    context: str | None = None
    namespace: str | None = None
    cluster: str | None = None


_used: list[Profile] = []


def use(profile: Profile | None) -> None:
    """Record which profile this process's command uses."""
    _used[:] = [] if profile is None else [profile]


def selected() -> Profile | None:
    """Return the profile of this command; None if there is none."""
    return _used[0] if _used else None


def profiles_file() -> Path:
    """Return the path of the profiles file."""
    if named := os.environ.get("HEADRACE_PROFILES"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "headrace" / "profiles.yaml"


def read_profile(name: str) -> Profile:
    """Read a profile. Raises BadInputError with the error and its position."""
    import yaml

    file = profiles_file()
    try:
        found = (yaml.safe_load(file.read_text()) or {})["profiles"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise BadInputError(f"--profile {name}: {file} has no profiles ({error!r})") from error
    if name not in found:
        raise BadInputError(f"{file} has no profile {name}, but {', '.join(sorted(found))}")
    entry = found[name] or {}
    unknown = sorted(entry.keys() - _FIELDS)
    if unknown:
        raise BadInputError(f"{file}: profile {name}: unknown fields {', '.join(unknown)}")
    profile = Profile(name=name, **{_FIELDS[key]: str(text) for key, text in entry.items()})
    in_kubernetes = profile.context or profile.namespace
    if bool(profile.bootstrap_servers) == bool(in_kubernetes):
        raise BadInputError(
            f"{file}: profile {name} needs either bootstrapServers, or context or namespace"
        )
    return profile
