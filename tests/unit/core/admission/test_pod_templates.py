"""Warnings at the creation of a Job or another object with a pod template that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.admission.pod_templates import TemplateKind, cautions
from app.core.admission.workload_kinds import BUILT_IN

KINDS = {kind.resource: kind for kind in BUILT_IN}
BY_JOB = {"fairgate.io/gang": "job"}
TRAIN = {"fairgate.io/gang": "train", "fairgate.io/gang-size": "4"}


def made(annotations: Any, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"annotations": annotations}, "spec": {}}
    return {"spec": {**spec, "template": template}}


def warned(kind: TemplateKind, document: Any, asks: bool = True) -> tuple[str, ...]:
    return cautions((kind,), document, lambda _: asks)


@pytest.mark.parametrize(
    ("resource", "document", "words"),
    [
        ("jobs", made(BY_JOB, parallelism=4), ""),
        ("jobs", made(TRAIN, parallelism=4), ""),
        ("jobs", made(TRAIN, parallelism=2), ""),  # another Job may have the others
        ("jobs", made(TRAIN, parallelism=9, completions=4), ""),
        ("jobs", made(TRAIN, parallelism=9), "9 pods at once"),
        ("jobs", made(TRAIN, parallelism=9, completions=5), "5 pods at once"),
        ("jobs", made({**TRAIN, "fairgate.io/gang-size": "x"}), "is not a whole number"),
        ("deployments", made(BY_JOB, replicas=4), "no Job made this pod"),
        ("jobs", made({**BY_JOB, "fairgate.io/gang-failure": "no"}), "neither keep nor restart"),
        ("jobs", made("nonsense", parallelism="many"), ""),
        ("jobs", made(TRAIN, parallelism="many"), ""),
        ("jobs", {"spec": "nonsense"}, ""),
        ("jobs", None, ""),
    ],
)
def test_what_the_pods_of_a_template_cannot_be_is_said_to_its_maker(
    resource: str, document: Any, words: str
) -> None:
    found = warned(KINDS[resource], document)
    assert len(found) == bool(words)
    assert all(words in each for each in found)


def test_templates_that_ask_for_nothing_are_not_looked_at() -> None:
    assert warned(KINDS["jobs"], made({"fairgate.io/gang-failure": "no"}), asks=False) == ()
