"""Which fields of a SparkApplication are honoured. Pure.

The kind's schema keeps every field as it is written, so a typo is no error of the API server's. All
that is set and not honoured is named in an Event, whether the published API has it or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["HONOURED", "ignored_fields"]

#: A field's own fields, those of each object of a list, or WHOLE: all that is in it is taken.
WHOLE: Mapping[str, Any] = {}


def _whole(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, WHOLE)


_NAME_PATH = _whole("name", "path")
_ROLE: Mapping[str, Any] = {
    **_whole("affinity", "annotations", "coreLimit", "coreRequest", "cores", "dnsConfig", "env"),
    **_whole("envFrom", "envSecretKeyRefs", "envVars", "hostAliases", "hostNetwork", "image"),
    **_whole("initContainers", "javaOptions", "labels", "lifecycle", "memory", "memoryOverhead"),
    **_whole("nodeSelector", "podSecurityContext", "ports", "priorityClassName", "schedulerName"),
    **_whole("securityContext", "serviceAccount", "shareProcessNamespace", "sidecars"),
    **_whole("terminationGracePeriodSeconds", "tolerations", "volumeMounts"),
    "configMaps": _NAME_PATH,
    "gpu": _whole("name", "quantity"),
    "secrets": _NAME_PATH,
    "template": {"metadata": _whole("labels", "annotations"), "spec": WHOLE},
}
HONOURED: Mapping[str, Any] = {
    **_whole("arguments", "failureRetries", "hadoopConf", "hadoopConfigMap", "image"),
    **_whole("imagePullPolicy", "imagePullSecrets", "mainApplicationFile", "mainClass"),
    **_whole("memoryOverheadFactor", "nodeSelector", "retryInterval", "sparkConf"),
    **_whole("sparkConfigMap", "suspend", "timeToLiveSeconds", "type", "volumes"),
    # They say what the image and the runner already are.
    **_whole("mode", "pythonVersion", "sparkVersion"),
    "deps": {
        **_whole("archives", "excludePackages", "files", "jars", "packages", "pyFiles"),
        **_whole("repositories"),
    },
    "driver": {**_ROLE, **_whole("kubernetesMaster", "serviceAnnotations", "serviceLabels")},
    "dynamicAllocation": {
        **_whole("enabled", "initialExecutors", "maxExecutors", "minExecutors"),
        **_whole("shuffleTrackingEnabled", "shuffleTrackingTimeout"),
    },
    "executor": {**_ROLE, **_whole("deleteOnTermination", "instances")},
    "monitoring": {"exposeDriverMetrics": WHOLE, "prometheus": _whole("port")},
    "restartPolicy": {
        **_whole("type", "onFailureRetries", "onFailureRetryInterval"),
        **_whole("onSubmissionFailureRetries", "onSubmissionFailureRetryInterval"),
    },
    "sparkUIOptions": {
        **_whole("serviceAnnotations", "serviceLabels", "servicePort", "servicePortName"),
        **_whole("serviceType"),
    },
}


def ignored_fields(application: Mapping[str, Any]) -> list[str]:
    """Return the fields that are set and that this runner ignores, sorted."""
    spec = application["spec"]
    found = set(_unhonoured(spec, HONOURED, "spec"))
    # Without it executors would take blocks of shuffles away with them: it stays on.
    if (spec.get("dynamicAllocation") or {}).get("shuffleTrackingEnabled") is False:
        found.add("spec.dynamicAllocation.shuffleTrackingEnabled")
    return sorted(found)


def _unhonoured(value: Any, honoured: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _unhonoured(each, honoured, path)
    elif isinstance(value, dict):
        for name, inner in value.items():
            fields = honoured.get(name)
            if fields is None:
                # Nothing is asked for by what is empty, or off.
                if inner:
                    yield f"{path}.{name}"
            elif fields:
                yield from _unhonoured(inner, fields, f"{path}.{name}")
