"""Rights: which the operator's Roles grant, and which its requests needed, by its own count."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from headrace_operator.kubernetes.api.rights import Right
from headrace_operator.kubernetes.api.watches import Watched, watched_kinds
from support.kube import ROOT, KubeOperator, apply, kubectl

_REQUESTS = re.compile(
    r"^headrace_operator_kubernetes_requests_total\{([^}]*)\} (\S+)$", re.MULTILINE
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

#: Plurals that are not the kind with an s.
_PLURALS = {"networkpolicy": "networkpolicies"}


def granted(documents: Iterable[Mapping[str, Any]]) -> set[Right]:
    """Return what Roles and ClusterRoles grant together."""
    return {
        Right(verb, resource if not group else _in_group(resource, group))
        for each in documents
        if each["kind"] in {"Role", "ClusterRole"}
        for rule in each.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _in_group(resource: str, group: str) -> str:
    plural, slash, subresource = resource.partition("/")
    return f"{plural}.{group}{slash}{subresource}"


def used(metrics: str) -> set[Right]:
    """Return the rights that an operator's requests needed, as its metrics count them."""
    labels = [dict(_LABEL.findall(found)) for found, _ in _REQUESTS.findall(metrics)]
    return {Right(each["verb"], each["resource"]) for each in labels}


def watching(*, with_spark: bool) -> set[Right]:
    """Return what watches need, which kopf sends and nobody counts."""
    kinds = watched_kinds(with_spark=with_spark)
    return {Right(verb, _resource(kind)) for kind in kinds for verb in ("list", "watch")}


def _resource(watched: Watched) -> str:
    api_version, kind = watched
    group = api_version.rpartition("/")[0]
    plural = _PLURALS.get(kind.lower(), f"{kind.lower()}s")
    return f"{plural}.{group}" if group else plural


@contextmanager
def may_give_up_volumes(operator: KubeOperator) -> Iterator[None]:
    """Let the operator delete claims meanwhile, as the component lost-volumes does."""
    file = ROOT / "manifests/components/lost-volumes/role.yaml"
    role, binding = yaml.safe_load_all(file.read_text())
    role["kind"] = binding["roleRef"]["kind"] = "ClusterRole"
    binding["kind"] = "ClusterRoleBinding"
    binding["subjects"][0]["namespace"] = operator.namespace
    apply(role, binding)
    try:
        yield
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", role["metadata"]["name"])
