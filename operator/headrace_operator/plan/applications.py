"""Plans applications and workloads: started once their topics exist, restarted on change."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from headrace_operator.plan.actions import StartApplication, StopApplication
from headrace_operator.plan.groups import held_applications
from headrace_operator.plan.model import Action, Application, Desired, Observed, Problem, Waiting
from headrace_operator.resources import Reason, SparkApplication
from headrace_operator.resources.spark_generation import generation_annotations

if TYPE_CHECKING:
    from collections.abc import Iterator

Outcome = Action | Problem | Waiting


def fingerprint(application: Application) -> str:
    """Return a fingerprint of the application's spec: the same for the same spec."""
    spec = application.document.get("spec", {})
    if application.kind == "SparkApplication":
        spec = spec | generation_annotations(application.document)
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_applications(observed: Observed, desired: Desired) -> Iterator[Outcome]:
    """Compare the desired applications with the running ones."""
    held = held_applications(observed, desired)
    missing = sorted(
        topic.topic_name
        for topic in desired.topics
        if topic.key not in desired.deleted and topic.topic_name not in observed.topics
    )
    for application in desired.applications:
        running = observed.applications.get(application.key)
        is_running = running is not None and running.is_running
        name = application.metadata.name
        if not _is_wanted(application, desired):
            if is_running:
                yield StopApplication(resource=application.key, application=name)
            continue
        wanted = fingerprint(application)
        if application.key in held or (running and is_running and running.fingerprint == wanted):
            continue
        if missing:
            message = f"starts when its topics exist: {', '.join(missing)}"
            yield Waiting(
                resource=application.key, reason=Reason.WAITING_FOR_TOPICS, message=message
            )
        else:
            yield StartApplication(
                resource=application.key,
                application=name,
                fingerprint=wanted,
                is_restart=is_running,
            )


def _is_wanted(application: Application, desired: Desired) -> bool:
    if application.key in desired.deleted:
        return False
    if isinstance(application, SparkApplication):
        return not application.spec.suspend
    return application.spec.replicas > 0
