"""The comparison with the API server's audit log finds each error and reports no false one."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults import audit_log
from tests.faults.audit_log import CONTROLLER, compare

Object = dict[str, Any]
GATED = [{"name": "fairgate.io/queue"}]


def write(verb: str, user: str, version: int, *, gates: list[Object], stamp: str = "0") -> Object:
    meta = {"uid": "u1", "name": "p", "namespace": "a", "resourceVersion": str(version)}
    return {
        "stage": "ResponseComplete",
        "level": "RequestResponse",
        "verb": verb,
        "user": {"username": user},
        "requestURI": "/api/v1/namespaces/a/pods",
        "objectRef": {"resource": "pods", "namespace": "a", "name": "p"},
        "responseStatus": {"code": 200},
        "stageTimestamp": "2026-01-01T00:00:00.5Z",
        "responseObject": {
            "kind": "Pod",
            "metadata": {**meta, "annotations": {"fairgate.io/release": stamp}},
            "spec": {"schedulingGates": gates},
        },
    }


CREATED = write("create", "alice", 1, gates=GATED)
FENCED = write("patch", CONTROLLER, 2, gates=GATED, stamp="0@2")
RELEASED = write("patch", CONTROLLER, 3, gates=[], stamp="2.1")
LABELLED = write("patch", "alice", 4, gates=[], stamp="2.1")
BY_HAND = write("patch", "olga", 3, gates=[], stamp="adopted")
DENIED = {
    **write("create", "alice", 0, gates=[]),
    "responseStatus": {"code": 403, "message": 'admission webhook "hold.fairgate.io" denied'},
    "responseObject": {"kind": "Status"},
}
CONFIGURED = {
    **CREATED,
    "verb": "update",
    "user": {"username": "root"},
    "objectRef": {"resource": "tenants", "apiGroup": "fairgate.io", "name": "t"},
}


def entry(entry_type: str, number: int = 1, **facts: object) -> Object:
    return {
        "number": number,
        "epoch": 2,
        "at": 0,
        "deed": entry_type,
        "facts": {"uid": "u1", **facts},
    }


ENTRY = entry("released", stamp="2.1")
HAND = entry("released", stamp="adopted", byHand=True, by="olga")
REFUSED: Object = {
    **entry("refused", user="alice", namespace="a", what="CREATE pods", count=1),
}
CHANGED = entry("changed", kind="Tenant", name="t", did="changed", by="root")
FORGOT: Object = {**entry("held", waiting=1), "at": 10**15}


def said(tmp_path: Path, events: list[Object], *entries: Object, lossy: bool = False) -> list[str]:
    log = tmp_path / "audit.log"
    log.write_text("\n".join(map(json.dumps, events)) + '\n{"cut off')
    return compare(log, entries, lossy=lossy)


@pytest.mark.parametrize(
    ("events", "entries"),
    [
        ([CREATED, FENCED, RELEASED, LABELLED], [ENTRY]),
        ([RELEASED, LABELLED, FENCED, CREATED], [ENTRY]),
        ([CREATED, BY_HAND], [HAND]),
        ([CREATED, BY_HAND], [entry("bypassed", by="olga")]),
        ([CREATED], []),
        ([CREATED], [entry("released", stamp="2.1", certain=False)]),
        ([CREATED, RELEASED], [FORGOT]),
        ([DENIED], [REFUSED]),
        ([{**DENIED, "requestURI": "/x?dryRun=All"}], []),
        ([CONFIGURED], [CHANGED]),
    ],
)
def test_agreeing_audit_log_and_entries_give_no_findings(
    tmp_path: Path, events: list[Object], entries: list[Object]
) -> None:
    assert said(tmp_path, events, *entries) == []


@pytest.mark.parametrize(
    ("events", "entries", "words"),
    [
        ([CREATED, RELEASED], [], "no entry says so"),
        ([CREATED], [ENTRY], "does not know"),
        ([CREATED, RELEASED], [ENTRY, entry("released", 2, stamp="2.1")], "2 entries tell"),
        ([CREATED, RELEASED], [entry("released", stamp="2.2")], "stamp 2.2"),
        ([CREATED, BY_HAND], [entry("released", stamp="adopted")], "by system:"),
        ([CREATED, BY_HAND], [{**HAND, "facts": {**HAND["facts"], "by": "eve"}}], "by eve"),
        ([CREATED, RELEASED], [entry("bypassed", by=CONTROLLER)], "told as a bypass"),
        ([DENIED], [], "0 refusals are told"),
        ([], [REFUSED], "the log has 0"),
        ([CONFIGURED], [], "no entry says so"),
        ([CONFIGURED], [{**CHANGED, "facts": {**CHANGED["facts"], "by": "eve"}}], "names root"),
        ([{**CREATED, "level": "Metadata"}], [], "lacks the bodies"),
    ],
)
def test_disagreement_of_audit_log_and_entries_is_reported(
    tmp_path: Path, events: list[Object], entries: list[Object], words: str
) -> None:
    assert words in " ".join(said(tmp_path, events, *entries))


def test_patch_with_unknown_outcome_agrees_with_and_without_an_entry(tmp_path: Path) -> None:
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": "u1"},
        {"op": "remove", "path": "/spec/schedulingGates"},
    ]
    lost = {**RELEASED, "responseStatus": {"code": 504}, "requestObject": patch}
    assert said(tmp_path, [CREATED, lost], ENTRY) == []
    assert said(tmp_path, [CREATED, lost]) == []


def test_lossy_log_may_lack_events_but_every_release_needs_an_entry(tmp_path: Path) -> None:
    assert said(tmp_path, [CREATED], ENTRY)
    assert not said(tmp_path, [CREATED], ENTRY, lossy=True)
    assert said(tmp_path, [CREATED, RELEASED], lossy=True)


def test_unknown_author_is_a_disagreement_unless_the_webhook_was_down(tmp_path: Path) -> None:
    events = [CREATED, BY_HAND, CONFIGURED]
    nobody = [{**each, "facts": {**each["facts"], "by": "unknown"}} for each in (HAND, CHANGED)]
    assert len(said(tmp_path, events, *nobody)) == 2
    assert compare(tmp_path / "audit.log", nobody, unsigned=True) == []


def test_the_comparison_shares_no_code_with_the_product() -> None:
    tree = ast.parse(Path(audit_log.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for alias in node.names}  # fmt: skip
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name.split(".")[0] in ("app", "tests")}
