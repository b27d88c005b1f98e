"""A JobSet that starts its replicated jobs one after another: each is a gang in the first's place.

The replicated job `driver` has two pods, `worker` has three.
"""

from __future__ import annotations

from app.core import events as ev
from app.core.model import Millis, Pod
from app.core.podspec.pod_groups import SIZE_FROM_GROUP, GangDeclaration
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.gang_driver import Lead, member

PARTS = (("driver", 2), ("worker", 3))
SEQUENCED = GangDeclaration("a", "jobset/js", 5, replicated_jobs=PARTS, waiting_since=Millis(900))
AT_ONCE = GangDeclaration("a", "jobset/js", 5)


def of_set(part: str, *numbers: int, **more: object) -> list[Pod]:
    return [member(n, SIZE_FROM_GROUP, "jobset/js", replicated_job=part, **more) for n in numbers]


def stated(group: GangDeclaration) -> ev.GroupObserved:
    return ev.GroupObserved(Millis(1000), group)


def test_each_replicated_job_starts_without_the_later_ones() -> None:
    lead = Lead()
    lead.hear(stated(SEQUENCED))
    lead.see(*of_set("driver", 0, 1))
    assert lead.released == ["g0", "g1"]
    lead.see(*of_set("worker", 2, 3))
    worker = of_set("worker", 4)
    assert lead.released == ["g0", "g1"]
    assert "gang jobset/js/worker is not complete, 2 of 3" in lead.text(of_set("worker", 2)[0])
    lead.see(*worker)
    assert lead.released[2:] == ["g2", "g3", "g4"]


def test_a_job_set_without_an_order_starts_as_one_gang() -> None:
    lead = Lead()
    lead.hear(stated(AT_ONCE))
    lead.see(*of_set("driver", 0, 1), *of_set("worker", 2, 3))
    assert lead.released == []
    lead.see(*of_set("worker", 4))
    assert sorted(lead.released) == ["g0", "g1", "g2", "g3", "g4"]


def test_a_later_replicated_job_waits_in_the_place_of_the_first() -> None:
    """Another pod of the user is older than the workers and younger than the JobSet."""
    lead = Lead(gpus=2)
    lead.hear(stated(SEQUENCED))
    lead.see(*of_set("driver", 0, 1))
    lead.see(held_pod("between", "a", since=1000))
    lead.see(*of_set("worker", 2, 3, 4, created_at=Millis(2000)))
    lead.room(5)
    assert lead.released[2:] == ["g2", "g3", "g4"]
    lead.room(6)
    assert lead.released[5:] == ["between"]


def test_pods_that_are_seen_before_their_job_set_are_regrouped() -> None:
    lead = Lead()
    lead.see(*of_set("driver", 0, 1), *of_set("worker", 2, 3))
    assert lead.released == []
    assert "no JobSet js states its size" in lead.text(of_set("driver", 0)[0])
    lead.hear(stated(SEQUENCED))
    assert lead.released == ["g0", "g1"]


def test_pods_that_succeeded_before_their_job_set_was_seen_are_not_missed() -> None:
    """One of three workers succeeded and one runs. The third one is a replacement."""
    lead = Lead()
    workers = of_set("worker", 2, 3)
    lead.see(*workers)
    lead.finish("a/g2")
    lead.hear(stated(SEQUENCED))
    assert lead.released == []
    lead.see(*of_set("worker", 4))
    assert lead.released == ["g3", "g4"]
    lead.gone("a/g2")
    lead.see(*of_set("worker", 5))
    assert lead.released == ["g3", "g4", "g5"]


def test_new_leader_does_not_evict_a_running_replicated_job() -> None:
    """The pods are listed before the JobSet, and the gang must not be taken for a broken one."""
    first = Lead()
    first.hear(stated(SEQUENCED))
    first.see(*of_set("driver", 0, 1))
    lead = Lead(8, *first.pods.values())
    lead.hear(stated(SEQUENCED))
    lead.see(*of_set("worker", 2, 3))
    lead.wait(3_600_000)
    assert lead.going() == []
    lead.see(*of_set("worker", 4))
    assert sorted(lead.released) == ["g2", "g3", "g4"]
    lead.gone("a/g1")
    lead.see(*of_set("driver", 5))
    assert lead.released[3:] == ["g5"]


def test_a_deleted_job_set_changes_no_gang() -> None:
    lead = Lead()
    lead.hear(stated(SEQUENCED))
    lead.see(*of_set("driver", 0, 1))
    lead.hear(ev.GroupGone(Millis(1000), "a", "jobset/js"))
    lead.wait(3_600_000)
    assert lead.going() == []
    lead.gone("a/g0", "a/g1")
    lead.hear(stated(AT_ONCE))  # another JobSet of the same name
    lead.see(*of_set("driver", 5, 6))
    assert lead.released == ["g0", "g1"]


def test_surplus_pod_of_a_replicated_job_waits_and_is_dropped_if_deleted() -> None:
    lead = Lead(gpus=2)
    lead.hear(stated(SEQUENCED))
    lead.see(*of_set("driver", 0, 1), *of_set("driver", 9))
    assert lead.released == ["g0", "g1"]
    assert "gang jobset/js has all its pods without it" in lead.text(of_set("driver", 9)[0])
    lead.gone("a/g9")
    assert lead.engine._registry.gangs._surplus == {}
