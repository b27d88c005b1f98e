"""The gang of a pod for every kind of pod group, and the gang size according to the objects."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from app.core.model import Millis
from app.core.podspec.pod_groups import (
    ALONE,
    SIZE_FROM_GROUP,
    UNBOUNDED,
    GangDeclaration,
    GangMetadata,
    Membership,
    gang_object_of,
    gang_warnings,
    membership,
)
from app.core.quantities import ManagedResources
from app.kube.convert_groups import (
    Groups,
    JobObject,
    JobSet,
    PodGroup,
    read_native_group,
    read_pod_group,
)

AT = Millis(7)
READ = Groups(ManagedResources(["nvidia.com/gpu"]))
OURS = {"fairgate.io/gang": "train", "fairgate.io/gang-size": "4"}
BY_JOB = {"fairgate.io/gang": "job"}
LEAST = "fairgate.io/gang-min"
IN_A_SET = {"jobset.sigs.k8s.io/jobset-name": "js"}
REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"
KUEUE = {"kueue.x-k8s.io/pod-group-name": "kg"}
KUEUE_COUNT = {"kueue.x-k8s.io/pod-group-total-count": "3"}
PLUGIN = {"scheduling.x-k8s.io/pod-group": "pg"}
OLD = {"pod-group.scheduling.sigs.k8s.io/name": "old"}
OLD_COUNT = {"pod-group.scheduling.sigs.k8s.io/min-available": "5"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (GangMetadata(), ALONE),
        (GangMetadata(annotations=OURS), ("train", 4)),
        (GangMetadata(annotations={**OURS, "fairgate.io/gang-size": "many"}), ALONE),
        (GangMetadata(annotations={**OURS, "fairgate.io/gang-size": "1"}), ALONE),
        (GangMetadata(annotations=BY_JOB, job="j"), ("job/j", SIZE_FROM_GROUP)),
        (GangMetadata(annotations=BY_JOB), ALONE),
        (GangMetadata(IN_A_SET, BY_JOB, job="js-w-0"), ("jobset/js", SIZE_FROM_GROUP)),
        (GangMetadata(IN_A_SET, BY_JOB), ALONE),  # a label that no Job wrote
        (GangMetadata(IN_A_SET, job="js-w-0"), ALONE),  # no gang is requested
        (GangMetadata(annotations={}, job="j"), ALONE),
        (GangMetadata(KUEUE, KUEUE_COUNT), ("kueue/kg", 3)),
        (GangMetadata(KUEUE, {}), ALONE),
        (GangMetadata(KUEUE, {"kueue.x-k8s.io/pod-group-total-count": "-3"}), ALONE),
        (GangMetadata(KUEUE, {"kueue.x-k8s.io/pod-group-total-count": "99999"}), ALONE),
        (GangMetadata(group="native"), ("podgroup/native", SIZE_FROM_GROUP)),
        (GangMetadata(PLUGIN), ("coscheduling/pg", SIZE_FROM_GROUP)),
        (GangMetadata({**OLD, **OLD_COUNT}), ("coscheduling/old", 5)),
        (GangMetadata(annotations={**OLD, **OLD_COUNT}), ("coscheduling/old", 5)),
        (GangMetadata(OLD), ALONE),
        # The minimum of an elastic gang.
        (GangMetadata(annotations={**OURS, LEAST: "2"}), ("train", 4, 2)),
        (GangMetadata(annotations={**OURS, LEAST: "4"}), ("train", 4)),
        (GangMetadata(annotations={**OURS, LEAST: "5"}), ("train", 4)),
        (GangMetadata(annotations={**OURS, LEAST: "some"}), ("train", 4)),
        (GangMetadata(annotations={**BY_JOB, LEAST: "2"}, job="j"), ("job/j", SIZE_FROM_GROUP, 2)),
        (
            GangMetadata(IN_A_SET, {**BY_JOB, LEAST: "2"}, job="js-w-0"),
            ("jobset/js", SIZE_FROM_GROUP, 2),
        ),
        (
            GangMetadata({**IN_A_SET, REPLICATED: "w"}, BY_JOB, job="js-w-0"),
            ("jobset/js", SIZE_FROM_GROUP, 0, "w"),
        ),
        (
            GangMetadata(annotations={LEAST: "2"}, group="native"),
            ("podgroup/native", SIZE_FROM_GROUP),
        ),
        # Precedence of the kinds.
        (GangMetadata(KUEUE, {**OURS, **KUEUE_COUNT}), ("train", 4)),
        (GangMetadata({**KUEUE, **PLUGIN}, KUEUE_COUNT, group="native"), ("kueue/kg", 3)),
        (GangMetadata(PLUGIN, group="native"), ("podgroup/native", SIZE_FROM_GROUP)),
        (GangMetadata({**PLUGIN, **OLD, **OLD_COUNT}), ("coscheduling/pg", SIZE_FROM_GROUP)),
    ],
)
def test_the_first_kind_of_group_that_a_pod_names_counts(
    words: GangMetadata, expected: tuple[Any, ...]
) -> None:
    assert membership(words) == Membership(*expected)


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (GangMetadata(annotations=OURS), []),
        (GangMetadata(annotations=BY_JOB, job="j"), []),
        (GangMetadata(annotations=BY_JOB), ["no Job made this pod"]),
        (GangMetadata(KUEUE, KUEUE_COUNT), []),
        (GangMetadata(KUEUE), ["pod-group-total-count: ''"]),
        (
            GangMetadata(KUEUE, {"kueue.x-k8s.io/pod-group-total-count": "x"}),
            ["pod-group-total-count"],
        ),
        (GangMetadata(KUEUE, {"kueue.x-k8s.io/pod-group-total-count": "1"}), ["has one pod"]),
        (GangMetadata(OLD), ["min-available"]),
        (GangMetadata({**OLD, **OLD_COUNT}), []),
        (GangMetadata({**OLD, **PLUGIN}), []),
        (GangMetadata(KUEUE, {**OURS, **KUEUE_COUNT}), ["'train' and the pod group 'kg'"]),
        (
            GangMetadata(annotations={**OURS, "fairgate.io/gang-failure": "retry"}),
            ["neither keep nor"],
        ),
        (GangMetadata(annotations={**OURS, "fairgate.io/gang-failure": "restart"}), []),
    ],
)
def test_invalid_gang_declarations_cause_warnings(words: GangMetadata, warned: list[str]) -> None:
    found = list(gang_warnings(words))
    assert len(found) == len(warned)
    for sentence, part in zip(found, warned, strict=True):
        assert part in sentence
        assert sentence.startswith("Fairgate: ")


def job(annotations: dict[str, str] | None = None, gpus: str = "1", **spec: Any) -> dict[str, Any]:
    containers = [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]
    about = {"annotations": BY_JOB if annotations is None else annotations}
    return {**spec, "template": {"metadata": about, "spec": {"containers": containers}}}


def told(spec: dict[str, Any], **status: Any) -> GangDeclaration | None:
    document = {"metadata": {"name": "j", "namespace": "n"}, "spec": spec, "status": status}
    found = READ.read_job(msgspec.convert(document, JobObject), AT)
    return found.group if found else None


@pytest.mark.parametrize(
    ("spec", "size", "total"),
    [
        (job(parallelism=4, completions=4), 4, 4),
        (job(parallelism=4, completions=10), 4, 10),
        (job(parallelism=10, completions=4), 4, 4),
        (job(parallelism=4), 4, None),
        (job(), 1, None),
        (job(parallelism=0, completions=4), 1, 4),
        (job(parallelism=99_999, completions=99_999), 1, 99_999),
    ],
)
def test_a_job_has_as_many_pods_as_may_run_at_once(
    spec: dict[str, Any], size: int, total: int | None
) -> None:
    assert told(spec) == GangDeclaration("n", "job/j", size, total)


def test_gang_of_a_job_counts_its_succeeded_pods() -> None:
    assert told(job(parallelism=4, completions=4), succeeded=3) == GangDeclaration(
        "n", "job/j", 4, 4, 3
    )


@pytest.mark.parametrize("spec", [job({}), job({"fairgate.io/gang": "train"}), job(gpus="0")])
def test_a_job_that_does_not_ask_or_is_not_held_is_nobodys_gang(spec: dict[str, Any]) -> None:
    assert told({**spec, "parallelism": 4}) is None


def job_set(*jobs: tuple[str, int, dict[str, Any]], **more: Any) -> JobSet:
    """Return a JobSet of replicated jobs: name, replicas, specification of the Job."""
    depends = more.pop("depends", {})
    replicated = [
        {
            "name": name,
            "replicas": replicas,
            "template": {"spec": spec},
            **(
                {"dependsOn": [{"name": depends[name], "status": "Ready"}]}
                if name in depends
                else {}
            ),
        }
        for name, replicas, spec in jobs
    ]
    about = {"name": "js", "namespace": "n", "creationTimestamp": "1970-01-01T00:00:05Z"}
    document = {"metadata": about, "spec": {"replicatedJobs": replicated, **more}}
    return msgspec.convert(document, JobSet)


JOBS_OF_SET = (
    ("w", 2, job(parallelism=3, completions=3)),
    ("x", 1, job()),
    ("y", 5, job({}, parallelism=7)),
    ("z", 1, job(gpus="0", parallelism=7)),
)


@pytest.mark.parametrize("more", [{}, {"startupPolicy": {"startupPolicyOrder": "AnyOrder"}}])
def test_job_set_is_one_gang_of_all_its_pods_that_request_it(more: dict[str, Any]) -> None:
    found = READ.read_job_set(job_set(*JOBS_OF_SET, **more), AT)
    assert found is not None
    assert found.group == GangDeclaration("n", "jobset/js", 7)


@pytest.mark.parametrize(
    "more", [{"startupPolicy": {"startupPolicyOrder": "InOrder"}}, {"depends": {"x": "w"}}]
)
def test_a_sequenced_job_set_has_a_gang_for_each_replicated_job(more: dict[str, Any]) -> None:
    found = READ.read_job_set(job_set(*JOBS_OF_SET, **more), AT)
    assert found is not None
    parts = (("w", 6), ("x", 1))
    assert found.group == GangDeclaration(
        "n", "jobset/js", 7, replicated_jobs=parts, waiting_since=Millis(5000)
    )


def test_pod_groups_of_both_kinds_are_read() -> None:
    about = {"metadata": {"name": "g", "namespace": "n"}}

    def group(**spec: Any) -> PodGroup:
        return msgspec.convert({**about, "spec": spec}, PodGroup)

    open_to_more = partial(GangDeclaration, "n", size=UNBOUNDED)
    plugin = read_pod_group(group(minMember=4), AT).group
    assert plugin == open_to_more(name="coscheduling/g", min_count=4)
    gang = group(schedulingPolicy={"gang": {"minCount": 3}})
    assert read_native_group(gang, AT).group == open_to_more(name="podgroup/g", min_count=3)
    basic = group(schedulingPolicy={"basic": {}})
    apart = GangDeclaration("n", "podgroup/g", 1, is_released_singly=True)
    assert read_native_group(basic, AT).group == apart


def test_gang_name_gives_the_object_that_states_the_gang_size() -> None:
    assert gang_object_of("jobset/js") == "JobSet js"
    assert gang_object_of("kueue/kg") == ""
    assert gang_object_of("train") == ""
