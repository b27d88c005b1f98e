"""Compares the audit chain with the API server's audit log, which is independent of Fairgate.

Uses only the standard library and no product code. If the two records disagree, one is wrong. The
log must contain request and response bodies of pods and of Fairgate's resources.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]
"""An exported entry: number, epoch, at, deed, facts."""

GATE = "fairgate.io/queue"
STAMP = "fairgate.io/release"
CONTROLLER = "system:serviceaccount:fairgate-system:fairgate-controller"
WRITES = ("create", "update", "patch")
KINDS = {"tenants": "Tenant", "pools": "Pool", "policies": "Policy"}
UNKNOWN = "unknown"
DENIED = re.compile(r'admission webhook "[a-z-]+\.fairgate\.io" denied')


@dataclass(frozen=True)
class Removal:
    """Fairgate's gate was removed from a pod. `certain`: the API server confirmed it."""

    uid: str
    user: str
    stamp: str
    at: int
    certain: bool = True


METADATA = "PartialObjectMetadata"


@dataclass
class Log:
    """The Fairgate requests in an audit log. `changes` are users by kind and name, in order."""

    removals: list[Removal] = field(default_factory=list)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    bodiless: int = 0


def compare(
    audit_log_path: str | Path,
    entries: Iterable[Entry],
    *,
    lossy: bool = False,
    unsigned: bool = False,
) -> list[str]:
    """Return the differences between the log and the chain, empty if they agree.

    `lossy`: the API server was killed, so its log may lack the last requests. `unsigned`: the
    webhook was down, so entries may have an unknown user.
    """
    known, log = list(entries), read(audit_log_path)
    if log.bodiless:
        return [f"the audit log lacks the bodies of {log.bodiless} writes of pods"]
    if unsigned:
        known = [_signed(entry, log) for entry in known]
    return [*_gates(log, known, lossy), *_refusals(log, known), *_changes(log, known, lossy)]


def read(path: str | Path) -> Log:
    """Read an audit log."""
    log, pods = Log(), []
    for event in _events(Path(path)):
        target, code = event.get("objectRef", {}), event.get("responseStatus", {}).get("code", 0)
        resource, user = target.get("resource"), event["user"]["username"]
        if resource == "pods" and "subresource" not in target:
            if 400 <= code < 500:
                said = event["responseStatus"].get("message", "")
                if event["verb"] == "create" and DENIED.search(said):
                    log.refusals[user, target.get("namespace", "")] += 1
            elif event["level"] == "Metadata":
                log.bodiless += 1
            else:
                pods.append(event)
        elif _configures(event):
            name = target.get("name") or event.get("responseObject", {})["metadata"]["name"]
            log.changes[KINDS[resource], name].append(user)
    log.removals = list(_removals(pods))
    return log


def _configures(event: Mapping[str, Any]) -> bool:
    target, code = event.get("objectRef", {}), event.get("responseStatus", {}).get("code", 0)
    ours = target.get("apiGroup") == "fairgate.io" and target.get("resource") in KINDS
    return ours and 200 <= code < 300 and "subresource" not in target


def _signed(entry: Entry, log: Log) -> Entry:
    """Return an entry, with an unknown user replaced by the user in the log."""
    facts = entry["facts"]
    if facts.get("by") != UNKNOWN:
        return entry
    users = log.changes.get((facts.get("kind", ""), facts.get("name", "")), [])
    users = users or [each.user for each in log.removals if each.uid == facts.get("uid")]
    return {**entry, "facts": {**facts, "by": users[-1]}} if users else entry


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event: dict[str, Any] = json.loads(line)
            except ValueError:  # the server was killed in the middle of a line
                continue
            if event.get("verb") not in WRITES or event.get("stage") != "ResponseComplete":
                continue
            if "dryRun=" not in event.get("requestURI", ""):
                yield event


def _removals(events: Iterable[dict[str, Any]]) -> Iterator[Removal]:
    """Yield each removal once, in the order of the pods' resource versions."""
    gated: dict[str, bool] = {}
    done: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
    for event in events:
        pod, code = event.get("responseObject") or {}, event["responseStatus"].get("code", 0)
        if 200 <= code < 300 and pod.get("kind") in ("Pod", METADATA):
            done.append((int(pod["metadata"]["resourceVersion"]), event, pod))
        elif code >= 500 and (uid := _tested(event.get("requestObject"))):
            yield Removal(uid, event["user"]["username"], "", _time(event), certain=False)
    for _, event, pod in sorted(done, key=lambda each: each[0]):
        uid, opens = pod["metadata"]["uid"], bool(_tested(event.get("requestObject")))
        before = gated.get(uid, opens)
        # The leader asks for the metadata only. Its patch tests the uid and removes the gate.
        holds = before and not opens if pod["kind"] == METADATA else _is_held(pod)
        if before and not holds:
            stamp = (pod["metadata"].get("annotations") or {}).get(STAMP, "")
            yield Removal(uid, event["user"]["username"], stamp, _time(event))
        gated[uid] = holds


def _is_held(pod: Mapping[str, Any]) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def _tested(patch: Any) -> str:
    """Return the uid that a gate-removing JSON Patch tests, "" for any other patch."""
    if not isinstance(patch, list):
        return ""
    steps = [step for step in patch if isinstance(step, dict)]
    removes = any(
        step.get("op") == "remove" and str(step.get("path")).startswith("/spec/schedulingGates")
        for step in steps
    )
    tested = [step.get("value") for step in steps if step.get("path") == "/metadata/uid"]
    return str(tested[0]) if removes and tested else ""


def _time(event: Mapping[str, Any]) -> int:
    return int(datetime.fromisoformat(event["stageTimestamp"]).timestamp() * 1000)


def _gates(log: Log, entries: list[Entry], lossy: bool) -> Iterator[str]:
    """Check that each removal has one entry and each release one removal, of equal pod and user."""
    told: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry["deed"] in ("released", "bypassed") and "uid" in entry["facts"]:
            told[entry["facts"]["uid"]].append(entry)
    forgotten = max((e["at"] for e in entries if "waiting" in e["facts"]), default=-1)
    certain = {each.uid: each for each in log.removals if each.certain}
    likely = {each.uid for each in log.removals}
    for uid, removal in certain.items():
        found = told.get(uid, [])
        if not found and removal.at > forgotten:
            yield f"pod {uid}: its gate was taken off by {removal.user}, and no entry says so"
        for entry in found:
            yield from _differences(removal, entry)
    for uid, found in told.items():
        if len(found) > 1:
            numbers = ", ".join(str(entry["number"]) for entry in found)
            yield f"pod {uid}: {len(found)} entries tell of one gate: {numbers}"
        sure = [e for e in found if e["deed"] == "released" and e["facts"].get("certain", True)]
        if sure and uid not in likely and not lossy:
            yield f"pod {uid}: entry {sure[0]['number']} tells of a release the log does not know"
    for uid, count in Counter(each.uid for each in log.removals if each.certain).items():
        if count > 1:
            yield f"pod {uid}: its gate was taken off {count} times"


def _differences(removal: Removal, entry: Entry) -> Iterator[str]:
    facts, what = entry["facts"], f"pod {removal.uid}, entry {entry['number']}"
    by_hand = facts.get("byHand") or entry["deed"] == "bypassed"
    by = facts.get("by", UNKNOWN) if by_hand else CONTROLLER
    if by != removal.user:
        yield f"{what}: by {by}, and the log says {removal.user}"
    if entry["deed"] == "released" and facts.get("stamp") != removal.stamp:
        yield f"{what}: stamp {facts.get('stamp')}, and the log says {removal.stamp}"
    if entry["deed"] == "bypassed" and removal.user == CONTROLLER:
        yield f"{what}: told as a bypass, and the log says that the leader released it"


def _refusals(log: Log, entries: list[Entry]) -> Iterator[str]:
    """Compare the number of refused creates per user in the log and in the chain."""
    told: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        facts = entry["facts"]
        if entry["deed"] == "refused" and facts.get("what") == "CREATE pods":
            told[facts["user"], facts["namespace"]] += facts["count"]
    for key in sorted(told.keys() | log.refusals.keys()):
        if told[key] != log.refusals[key]:
            user, namespace = key
            yield (
                f"{user} in {namespace}: {told[key]} refusals are told, and the log has "
                f"{log.refusals[key]}"
            )


def _changes(log: Log, entries: list[Entry], lossy: bool) -> Iterator[str]:
    """Check that the log confirms the user of each entry, and that the last users agree."""
    last: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        facts = entry["facts"]
        if entry["deed"] != "changed" or facts["did"] == "deleted":
            continue
        key = facts["kind"], facts["name"]
        last[key] = entry
        users = log.changes.get(key, [])
        if facts["by"] not in users and not lossy:
            what = f"{key[0]} {key[1]}, entry {entry['number']}"
            yield f"{what}: by {facts['by']}, and the log names {', '.join(users) or 'nobody'}"
    for key, users in log.changes.items():
        if key not in last:
            yield f"{key[0]} {key[1]}: changed by {users[-1]}, and no entry says so"
