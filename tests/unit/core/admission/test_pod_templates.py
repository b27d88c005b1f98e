"""Warnings at the creation of a Job or another object with a pod template that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.admission.pod_templates import TemplateKind, template_warnings
from app.core.admission.workload_kinds import BUILT_IN
from app.core.podspec.pod_groups import GangMetadata, gang_warnings
from app.core.safe_text import escape_hidden
from app.core.well_known import USER_KEYS
from app.web.webhook.admission_review import LONGEST_WARNING, MOST_WARNINGS

KINDS = {kind.resource: kind for kind in BUILT_IN}
BY_JOB = {"fairgate.io/gang": "job"}
TRAIN = {"fairgate.io/gang": "train", "fairgate.io/gang-size": "4"}


def made(annotations: Any, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"annotations": annotations}, "spec": {}}
    return {"spec": {**spec, "template": template}}


def warned(kind: TemplateKind, document: Any, asks: bool = True) -> tuple[str, ...]:
    return template_warnings((kind,), document, lambda _: asks)


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
def test_gang_annotations_that_cannot_work_cause_a_warning_at_create(
    resource: str, document: Any, words: str
) -> None:
    found = warned(KINDS[resource], document)
    assert len(found) == bool(words)
    assert all(words in each for each in found)


def test_template_without_managed_resources_gets_no_warning() -> None:
    assert warned(KINDS["jobs"], made({"fairgate.io/gang-failure": "no"}), asks=False) == ()


@pytest.mark.parametrize("resource", ["jobs", "cronjobs", "deployments", "jobsets"])
@pytest.mark.parametrize(
    ("place", "key", "words"),
    [
        ("annotations", "gnag", "no annotation fairgate.io/gnag; did you mean fairgate.io/gang?"),
        ("annotations", "max-runtme", "did you mean fairgate.io/max-runtime?"),
        ("annotations", "Gang-Siz", "did you mean fairgate.io/gang-size?"),
        ("annotations", "zzz", "there is no annotation fairgate.io/zzz; remove it."),
        ("labels", "gang", "no label fairgate.io/gang; did you mean the annotation fairgate.io/"),
        (
            "annotations",
            "pool",
            "alone; pods of this template lose it. Did you mean the annotation fairgate.io/pools?",
        ),
        ("annotations", "release", "fairgate.io/release is written by Fairgate alone"),
        ("labels", "pool", "the pod template has the label fairgate.io/pool, which Fairgate"),
        ("annotations", "submitter", ""),
        ("annotations", "max-runtime", ""),
    ],
)
def test_warning_about_an_unknown_key_suggests_the_nearest_known_key(
    resource: str, place: str, key: str, words: str
) -> None:
    template = {"metadata": {place: {f"fairgate.io/{key}": "1h"}}, "spec": {}}
    document: dict[str, Any] = {"spec": {"template": template}}
    if resource == "cronjobs":
        document = {"spec": {"jobTemplate": document}}
    if resource == "jobsets":
        job = {"name": "a", "template": document}
        document = {"spec": {"replicatedJobs": [job]}}
    found = warned(KINDS[resource], document)
    assert len(found) == bool(words)
    assert all(words in each for each in found)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model-size", "'big' is not a number of parameters"),
        ("gpu-memory", "'big' is not an amount of memory"),
        ("gang-min", "'big' is not a whole number"),
    ],
)
def test_a_value_that_every_pod_would_be_refused_for_is_a_warning(key: str, words: str) -> None:
    [found] = warned(KINDS["jobs"], made({f"fairgate.io/{key}": "big"}))
    assert words in found


KUEUE = "kueue.x-k8s.io/pod-group"
OLD = "pod-group.scheduling.sigs.k8s.io"


@pytest.mark.parametrize("letter", ["x", "'", "\x01", "\u202e", "\U000e0001"])
def test_every_warning_fits_whole_with_the_longest_values(letter: str) -> None:
    longest = letter * 1000
    annotations = dict.fromkeys(USER_KEYS, longest) | {
        f"fairgate.io/gan{i}".ljust(75, "x"): "" for i in range(9)
    }
    labels = {
        f"{KUEUE}-name": longest,
        "fairgate.io/checkpoint-intervals": "",
        "fairgate.io/".ljust(75, "x"): "",
    }
    counted = {f"{KUEUE}-total-count": longest, f"{OLD}/min-available": longest}
    found = [
        *warned(
            KINDS["jobs"],
            {
                "spec": {
                    "template": {
                        "metadata": {"annotations": annotations, "labels": labels},
                        "spec": {},
                    }
                }
            },
        ),
        *warned(
            KINDS["jobs"],
            made({**TRAIN, "fairgate.io/gang": longest}, parallelism=10**9),
        ),
        *warned(KINDS["deployments"], made({**BY_JOB, "fairgate.io/gang-min": "10001"})),
        *gang_warnings(GangMetadata({f"{KUEUE}-name": longest}, counted)),
        *gang_warnings(GangMetadata({f"{OLD}/name": longest}, counted)),
        *gang_warnings(GangMetadata({f"{KUEUE}-name": longest}, {f"{KUEUE}-total-count": "1"})),
    ]
    assert len(found) > MOST_WARNINGS
    assert [each for each in found if len(escape_hidden(each)) > LONGEST_WARNING] == []
    assert MOST_WARNINGS * LONGEST_WARNING <= 4096
