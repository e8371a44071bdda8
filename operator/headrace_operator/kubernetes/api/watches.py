"""kopf as informer: its watches feed the store and the register, and events become keys.

Owns kopf's settings and the list of watched kinds. kopf's handlers do no work: kopf writes no
finalizers, annotations or patches, and runs no timers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.api.cache import MANAGED_BY
from headrace_operator.render.policies import POD_MONITOR
from headrace_operator.resources import API_VERSION, SPARK_API_VERSION

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from headrace_operator.kubernetes.api.connection import Connection
    from headrace_operator.kubernetes.api.transport import Object

__all__ = [
    "OPTIONAL_OWNED_KINDS",
    "OWN_KINDS",
    "SPARK_KINDS",
    "Watched",
    "run_watches",
    "selector_of",
    "watched_kinds",
]

#: API version and kind.
Watched = tuple[str, str]

OWN_KINDS: tuple[Watched, ...] = (
    (API_VERSION, "Cluster"),
    (API_VERSION, "Topic"),
    (API_VERSION, "ConsumerGroup"),
)
SPARK_KINDS: tuple[Watched, ...] = ((SPARK_API_VERSION, "SparkApplication"),)
#: Only those with MANAGED_BY's label, which the API server filters.
OWNED_KINDS: tuple[Watched, ...] = (
    ("apps/v1", "StatefulSet"),
    ("v1", "Pod"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "ServiceAccount"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)
#: The same, if Spark applications are run: what a driver's account may do.
SPARK_OWNED_KINDS: tuple[Watched, ...] = (
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
)
#: The same, if the Prometheus operator is installed. They are not watched: `optional_kinds` looks.
OPTIONAL_OWNED_KINDS: tuple[Watched, ...] = (POD_MONITOR,)

OWNED_SELECTOR = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())

#: The server ends a watch after this time; a silent one is dropped, as bookmarks come every minute.
WATCH_SECONDS = 600
INACTIVITY_SECONDS = 90.0
REQUEST_SECONDS = 60.0
LIST_CHUNK = 500
WORKERS_MAX = 200
BACKOFF_SECONDS = (1.0, 1.0, 2.0, 3.0)
BACKOFF_SECONDS_MAX = 5.0


class Backoffs:
    """Endless pauses between attempts: after the last one kopf would give up and exit.

    kopf's own pauses grow to 21 s: watches would return that late after the API server does.
    """

    def __iter__(self) -> Iterator[float]:
        """Start with the shortest pause."""
        return itertools.chain(BACKOFF_SECONDS, itertools.repeat(BACKOFF_SECONDS_MAX))


def watched_kinds(*, with_spark: bool) -> tuple[Watched, ...]:
    """Return the watched kinds."""
    spark = (*SPARK_KINDS, *SPARK_OWNED_KINDS) if with_spark else ()
    return (*OWN_KINDS, *OWNED_KINDS, *spark)


def selector_of(kind: Watched) -> str | None:
    """Return the label selector of a watched kind; None: all objects."""
    owned = (*OWNED_KINDS, *SPARK_OWNED_KINDS, *OPTIONAL_OWNED_KINDS)
    return OWNED_SELECTOR if kind in owned else None


async def run_watches(
    connection: Connection,
    namespaces: Sequence[str],
    kinds: Sequence[Watched],
    on_event: Callable[[Object, bool], None],
    stop: asyncio.Event,
) -> None:
    """Watch until `stop`. `on_event` gets an object's present state, and whether it is gone.

    `namespaces` empty: all.
    """
    import kopf

    for name in ("kopf.activities", "kopf.objects", "kopf"):
        logging.getLogger(name).setLevel(logging.WARNING)
    registry = kopf.OperatorRegistry()
    settings = _settings()

    class Login(kopf.ConnectionInfo):
        """kopf knows neither impersonation nor other names in certificates."""

        def as_ssl_context(self) -> ssl.SSLContext:
            """See Connection."""
            return connection.ssl_context()

        def as_http_headers(self) -> list[tuple[str, str]]:  # type: ignore[override] # a dict has no two groups
            """See Connection."""
            return connection.headers()

    async def login(**_: Any) -> Any:
        return Login(
            server=connection.server,
            ca_path=connection.ca_path,
            insecure=connection.is_insecure,
            token=connection.read_token(),
            certificate_path=connection.certificate_path,
            private_key_path=connection.private_key_path,
            proxy_url=connection.proxy_url,
        )

    async def handle(*, event: Any, **_: Any) -> None:
        on_event(event["object"], event["type"] == "DELETED")

    kopf.on.login(registry=registry)(login)
    for api_version, kind in kinds:
        group, _, version = api_version.rpartition("/")
        kopf.on.event(group=group, version=version, kind=kind, registry=registry)(handle)
        if labels := selector_of((api_version, kind)):
            settings.watching.label_selectors[group, version, kind] = labels
    await kopf.operator(
        registry=registry,
        settings=settings,
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stop,
    )


def _settings() -> Any:
    import kopf

    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.watching.chunk_size = LIST_CHUNK
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.error_backoffs = Backoffs()
    settings.queueing.worker_limit = WORKERS_MAX
    settings.queueing.idle_timeout = 0.2
    # Kinds and namespaces are known from the start, so no permission to list CRDs is needed.
    settings.scanning.disabled = True
    return settings
