"""Checks whether the pods of Fairgate itself run, and why not. Pure functions of a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from app.commands.doctor.findings import Check, Finding, count, ok, problem, warning
from app.commands.doctor.snapshot import ClusterSnapshot, read_time
from app.ports.cluster_survey import Object

API = "fairgate-api"
LABEL = "app.kubernetes.io/"
STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container without a cause."""

VAGUE = ("", "Unhealthy")
"""Reasons of a pod that may still start."""

PATIENCE = timedelta(minutes=1)
"""A pod with such a reason is a problem when it is older."""

LONGEST = 300
"""Characters of a message of the kubelet."""

IMAGES = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")
REMEDIES = {
    "CreateContainerConfigError": "Create the object that the message names, or change the value.",
    "FailedMount": "Create the object that the message names, or change the value that names it.",
    "Unschedulable": "Change resources, nodeSelector or tolerations, or add a node.",
    "FailedCreate": "Change the value that the message is about, or allow these pods.",
    "CrashLoopBackOff": "See the log of the container (kubectl logs --previous).",
}


class Obstacle(NamedTuple):
    """Why a pod does not run: a word of Kubernetes, "" if it is unknown, and a message."""

    reason: str
    message: str


def check_components(seen: ClusterSnapshot, now: datetime) -> Iterator[Finding]:
    """Report each component whose pods are missing or not ready, with the reason."""
    found = seen.installation
    if not found.exists or not seen.is_known("pods", "events", "deployments"):
        return
    pods = [each for each in found.pods if _component(each) and not _is_over(each)]
    stuck: dict[tuple[str, Obstacle], list[Object]] = {}
    for pod in pods:
        if not _is_ready(pod):
            stuck.setdefault((_component(pod), _obstacle(pod, found.events)), []).append(pod)
    findings = [_finding(*what, those, now) for what, those in stuck.items()]
    present = Counter(map(_component, pods))
    findings += [
        lack
        for name, each in found.deployments.items()
        if (lack := _lack(each, present[name])) is not None
    ]
    if pods and not findings:
        findings = [ok(Check.COMPONENTS, "all pods of Fairgate are ready.")]
    yield from findings


def _lack(deployment: Object, present: int) -> Finding | None:
    """Report a Deployment that has `present` pods, if it needs more."""
    name = deployment["metadata"]["name"]
    objects = [f"Deployment {name}"]
    if refusal := _refusal(deployment):
        message = _sentence(f"pods of Deployment {name} cannot be created: {refusal}")
        return problem(Check.COMPONENTS, message, REMEDIES["FailedCreate"], objects)
    replicas = int(deployment["spec"].get("replicas", 1))
    if _component(deployment["spec"]["template"]) != name:
        return None  # a Deployment of another application
    if not replicas and name == API:
        return None  # 0 replicas turn it off
    if not replicas:
        message = f"Deployment {name} is scaled to 0 replicas."
        remedy = f"Apply the chart again, or use kubectl scale deployment {name}."
        return problem(Check.COMPONENTS, message, remedy, objects)
    if present >= replicas:
        return None
    make = warning if present else problem
    message = f"Deployment {name} has {present} of {count(replicas, 'pod')}."
    remedy = f"If this does not end in a minute, see kubectl describe deployment {name}."
    return make(Check.COMPONENTS, message, remedy, objects)


def _finding(component: str, obstacle: Obstacle, pods: Sequence[Object], now: datetime) -> Finding:
    names = [f"Pod {each['metadata']['name']}" for each in pods]
    verb = "is" if len(pods) == 1 else "are"
    message = f"{count(len(pods), 'pod')} of {component} {verb} not ready"
    if obstacle.reason or obstacle.message:
        message += f": {': '.join(part for part in obstacle if part)}"
    message = _sentence(message)
    if obstacle.reason in IMAGES:
        value = "redis.bundled.image" if component == "fairgate-redis" else "image.repository"
        remedy = (
            f"Set {value} to an image that the nodes can pull (imagePullSecrets "
            "for a private registry)."
        )
    else:
        remedy = REMEDIES.get(obstacle.reason, f"See the log of the pods of {component}.")
    born = [read_time(each["metadata"].get("creationTimestamp")) or now for each in pods]
    make = warning if obstacle.reason in VAGUE and min(born) > now - PATIENCE else problem
    return make(Check.COMPONENTS, message, remedy, names)


def _component(pod: Object) -> str:
    """Return the Deployment of a pod or template; "" for the pod of `helm test` and others."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    name = str(labels.get(f"{LABEL}name", ""))
    part = str(labels.get(f"{LABEL}component", ""))
    if name == "fairgate":
        return f"fairgate-{part}" if part else ""
    return name if name == "fairgate-redis" else ""


def _is_over(pod: Object) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return "deletionTimestamp" in pod["metadata"] or phase in ("Succeeded", "Failed")


def _is_ready(pod: Object) -> bool:
    return _condition(pod, "Ready").get("status") == "True"


def _condition(item: Object, kind: str) -> Object:
    found: list[Object] = (item.get("status") or {}).get("conditions") or []
    return next((each for each in found if each.get("type") == kind), {})


def _refusal(deployment: Object) -> str:
    """Return why a Deployment cannot create pods; "" if it can."""
    failure = _condition(deployment, "ReplicaFailure")
    return _shortened(failure.get("message")) if failure.get("status") == "True" else ""


def _obstacle(pod: Object, events: Sequence[Object]) -> Obstacle:
    """Return why a pod is not ready, the same for pods with the same cause."""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return Obstacle(str(scheduled.get("reason", "")), _shortened(scheduled.get("message")))
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        state = each.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        reason = str((waiting or ended).get("reason", ""))
        if reason == "CrashLoopBackOff":
            ended = (each.get("lastState") or {}).get("terminated") or {}
        if ended:
            said = ended.get("message") or f"exit code {ended.get('exitCode')}"
            return Obstacle(reason, _shortened(said))
        if reason and reason not in STARTING:
            return Obstacle(reason, _shortened(waiting.get("message")))
    warned = [
        each
        for each in events
        if each.get("type") == "Warning"
        and (each.get("involvedObject") or {}).get("uid") == pod["metadata"].get("uid")
        and each.get("reason") != "FailedScheduling"
    ]
    if not warned:
        return Obstacle("", "")
    last = max(warned, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime")))
    return Obstacle(str(last.get("reason", "")), _shortened(last.get("message")))


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _shortened(text: object) -> str:
    line = " ".join(str(text or "").split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
