"""Valid scenario files, and the errors of invalid ones."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from app.core.errors import InvalidInput
from app.core.model import PlacementStrategy, Quota, TopologyConstraint
from app.core.podspec.equivalence_class import GangLayout
from app.core.policy import Policy, Reclaim, WithinQueue
from app.sim.scenario import value_parsers
from app.sim.scenario.loader import _FIELDS, DEFAULT_POLICY, Scenario, load, parse
from app.sim.scenario.policy_fields import FIELDS
from app.sim.scenario.scenario_cluster import _NODE_FIELDS, _POOL_FIELDS
from app.sim.scenario.tenants import _TENANT_FIELDS
from app.sim.scenario.workloads import _WORK_FIELDS

DOCS = Path(__file__).parents[3] / "docs"
GPU = "nvidia.com/gpu"
HOUR = 3_600_000

PLAIN = """\
policy: {reclaim: "off"}
pools: [{name: main, capacity: {nvidia.com/gpu: 8, cpu: 32}}]
tenants:
  - {name: a}
  - {name: b}
workloads:
  - {name: w, tenant: a, request: {nvidia.com/gpu: 1}}
until: 2h
"""


def changed(old: str, new: str) -> str:
    assert PLAIN.count(old) == 1, old
    return PLAIN.replace(old, new)


def refused(text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse(text, "s.yaml")
    return str(caught.value)


def read(text: str) -> Scenario:
    return parse(text, "s.yaml")


def test_fields_that_are_absent_have_the_defaults_of_a_scenario() -> None:
    scenario = read(PLAIN.replace('policy: {reclaim: "off"}\n', ""))
    (work,) = scenario.works

    assert scenario.policy == Policy(
        history=Fraction(0),
        half_life=4 * HOUR,
        min_charge=0,
        reserve_after=300_000,
        backfill=True,
        reclaim=Reclaim.OFF,
        within_queue=WithinQueue.NEVER,
        min_runtime=0,
    )
    assert (work.user, work.at, work.pods, work.duration) == ("a", 0, 1, None)
    assert (work.priority, work.pools, work.released, work.preemptible) == (0, (), None, True)
    assert scenario.tenants[0].weight == 1
    assert scenario.until == 2 * HOUR


def test_every_field_is_read() -> None:
    scenario = read(
        """\
policy: {history: 0.5, halfLife: 1h30m, minCharge: 10s, reserveAfter: 2m, reclaim: fair,
         minRuntime: 90s, withinQueue: LowerPriority, backfill: no}
pools:
  - {name: fast, capacity: {nvidia.com/gpu: 8}, weights: {nvidia.com/gpu: "4"},
     overcommit: {nvidia.com/gpu: 1.5}, placement: spread, paused: true}
  - {name: slow, nodes: [{name: n, count: 2, capacity: {nvidia.com/gpu: 4, cpu: 500m,
     memory: 1.5Gi}, labels: {zone: east}}], nodeSelector: {kind: slow}, topology: [zone]}
tenants:
  - {name: p, weight: 2.5}
  - {name: a, parent: p, users: [{name: alice, weight: 3}], pools: [slow], paused: true,
     quotas: [{pool: slow, guarantee: {nvidia.com/gpu: 2}, limit: {nvidia.com/gpu: 6}}]}
workloads:
  - {name: w, tenant: a, user: alice, at: 1m, count: 2, every: 30s, pods: 2,
     request: {nvidia.com/gpu: 1, cpu: 250m, memory: 1Gi}, priority: -5, duration: 1h,
     maxRuntime: 2h, pool: slow, running: false, preemptible: false, placement: spread,
     topology: "required:zone"}
until: 2d
"""
    )
    fast, slow = scenario.cluster.pools
    first, second = scenario.works
    child = scenario.tenants[1]

    assert scenario.policy == Policy(
        Fraction(1, 2), 5_400_000, 10_000, 120_000, False, Reclaim.FAIR,
        WithinQueue.LOWER_PRIORITY, 90_000,
    )  # fmt: skip
    assert (fast.weights, fast.overcommit) == ({GPU: 4}, {GPU: Fraction(3, 2)})
    assert (fast.placement, fast.paused, slow.placement) == (
        PlacementStrategy.SPREAD,
        True,
        PlacementStrategy.PACK,
    )
    assert scenario.cluster.offers == {
        "fast": {GPU: 12},
        "slow": {GPU: 8, "cpu": 1000, "memory": 3 * 2**30},
    }
    assert [node.name for node in scenario.cluster.nodes] == ["fast", "n-0", "n-1"]
    assert scenario.cluster.capacity_nodes == {"fast"}
    assert slow.selector.items() <= scenario.cluster.nodes[1].labels.items()
    assert scenario.cluster.nodes[1].labels["zone"] == "east"
    assert (child.parent, child.pools, child.user_weights) == ("p", ("slow",), {"alice": 3})
    assert child.quotas == {"slow": Quota({GPU: 2}, {GPU: 6})}
    assert child.paused
    assert scenario.tenants[0].weight == Fraction(5, 2)
    assert (first.name, first.at, second.name, second.at) == ("w-0", 60_000, "w-1", 90_000)
    assert first.demand == {GPU: 1, "cpu": 250, "memory": 2**30}
    assert (first.pods, first.priority, first.preemptible) == (2, -5, False)
    assert (first.duration, first.max_runtime, first.pools) == (HOUR, 2 * HOUR, ("slow",))
    assert (fast.topology, slow.topology) == ((), ("zone",))
    assert second.layout == GangLayout(PlacementStrategy.SPREAD, TopologyConstraint("zone", True))


def test_copies_are_numbered_even_if_there_is_one() -> None:
    assert [work.name for work in read(PLAIN).works] == ["w-0"]
    assert [w.name for w in read(changed("name: w,", "name: w, count: 2,")).works] == ["w-0", "w-1"]


def test_running_workloads_were_released_a_second_apart_in_file_order() -> None:
    text = changed(
        "  - {name: w, tenant: a, request: {nvidia.com/gpu: 1}}\n",
        """\
  - {name: x, tenant: a, request: {nvidia.com/gpu: 1}, count: 2, running: true}
  - {name: w, tenant: a, request: {nvidia.com/gpu: 1}}
  - {name: y, tenant: b, request: {nvidia.com/gpu: 1}, at: 0s, running: true}
""",
    )
    assert {work.name: work.released for work in read(text).works} == {
        "x-0": -3000,
        "x-1": -2000,
        "w-0": None,
        "y-0": -1000,
    }


def test_every_resource_of_a_capacity_is_managed() -> None:
    managed = read(PLAIN).managed

    assert GPU in managed
    assert "cpu" in managed
    assert "memory" not in managed


@pytest.mark.parametrize("written", ["off", "Off", '"off"', "false"])
def test_a_bare_off_turns_reclaim_off(written: str) -> None:
    assert read(changed('"off"', written)).policy.reclaim is Reclaim.OFF


def test_nodes_without_pools_are_the_pool_default() -> None:
    text = changed(
        "pools: [{name: main, capacity: {nvidia.com/gpu: 8, cpu: 32}}]",
        "nodes: [{name: n, capacity: {nvidia.com/gpu: 8}}]",
    ).replace("{name: a}", "{name: a, guarantee: {nvidia.com/gpu: 2}}")
    scenario = read(text)

    assert scenario.cluster.pools == ()
    assert scenario.cluster.offers == {"default": {GPU: 8}}
    assert scenario.tenants[0].quotas == {"default": Quota({GPU: 2})}
    assert [node.name for node in scenario.cluster.nodes] == ["n"]


def test_pools_select_among_the_nodes_by_label() -> None:
    text = changed(
        "pools: [{name: main, capacity: {nvidia.com/gpu: 8, cpu: 32}}]",
        """\
pools: [{name: big, nodeSelector: {kind: big}}, {name: small, nodeSelector: {kind: small}}]
nodes:
  - {name: b, count: 2, capacity: {nvidia.com/gpu: 8}, labels: {kind: big}}
  - {name: s, capacity: {nvidia.com/gpu: 1}, labels: {kind: small}}
  - {name: foreign, capacity: {nvidia.com/gpu: 1}}""",
    )
    assert read(text).cluster.offers == {"big": {GPU: 16}, "small": {GPU: 1}}


def test_pods_count_only_where_a_capacity_names_them() -> None:
    assert read(PLAIN).works[0].demand == {GPU: 1}
    assert read(changed("cpu: 32", "pods: 2")).works[0].demand == {GPU: 1, "pods": 1}


def test_request_of_zero_is_dropped() -> None:
    assert read(changed("gpu: 1}", "gpu: 1, cpu: 0}")).works[0].demand == {GPU: 1}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("{name: b}", "{name: b, weight: -1}", "5: tenants[1].weight: -1 is negative"),
        ("{name: b}", "{name: b, weight: 1e3}", "5: tenants[1].weight: '1e3' is no decimal number"),
        ("{name: b}", "{name: b, wieght: 1}", "5: tenants[1].wieght: there is no such field"),
        ("{name: b}", "{name: b, weight: }", "5: tenants[1].weight: this has no value"),
        ("{name: b}", "{name: b, weight: [1]}", "5: tenants[1].weight: this is a list"),
        ("{name: b}", "{name: b, parent: c}", "5: tenants[1].parent: there is no tenant c"),
        ("{name: b}", "{name: b, parent: b}", "5: tenants[1].parent: the parents b -> b are a"),
        ("{name: b}", "{name: a}", "5: tenants[1].name: there is a tenant a already"),
        ("{name: b}", "{name: ns.b}", "5: tenants[1].name: names that begin with ns."),
        ("{name: b}", "{name: ''}", "5: tenants[1].name: '' is no name"),
        ("{name: b}", "{name: b, pools: [man]}", "5: tenants[1].pools[0]: there is no pool man"),
        ("{name: b}", "{weight: 1}", "5: tenants[1]: name is missing"),
        ("{name: b}", "b", "5: tenants[1]: this is a single value; write a map"),
        (
            "{name: b}",
            "{name: b, guarantee: {nvidia.com/gpu: 3}, limit: {nvidia.com/gpu: 2}}",
            "5: tenants[1].guarantee: 3 nvidia.com/gpu are more than the limit of 2",
        ),
        (
            "{name: b}",
            "{name: b, limit: {nvidia.com/gpus: 2}}",
            "5: tenants[1].limit[nvidia.com/gpus]: pool main has no nvidia.com/gpus (did you mean",
        ),
        (
            "{name: b}",
            "{name: b, users: [{name: u}, {name: u}]}",
            "5: tenants[1].users[1].name: there is a user u already",
        ),
        ("tenant: a", "tenant: c", "7: workloads[0].tenant: there is no tenant c"),
        ("tenant: a", "tenant: a, pool: mian", "7: workloads[0].pool: there is no pool mian (did"),
        ("tenant: a", "tenant: a, pods: 0", "7: workloads[0].pods: 0 is too small"),
        ("tenant: a", "tenant: a, count: 0", "7: workloads[0].count: 0 is too small"),
        ("tenant: a", "tenant: a, count: 1.5", "7: workloads[0].count: '1.5' is no whole number"),
        ("tenant: a", "tenant: a, count: 2000000", "7: workloads[0].count: 2000000 is too large"),
        ("tenant: a", "tenant: a, at: 5", "7: workloads[0].at: '5' has no unit; write 5s"),
        ("tenant: a", "tenant: a, at: -5s", "7: workloads[0].at: -5s is negative"),
        ("tenant: a", "tenant: a, duration: 5 s", "7: workloads[0].duration: '5 s' is no length"),
        ("tenant: a", "tenant: a, running: 2", "7: workloads[0].running: '2' is neither true nor"),
        ("tenant: a", "tenant: a, user: ' x'", "7: workloads[0].user: ' x' is no name"),
        ("gpu: 1}", "gpu: 0}", "7: workloads[0].request: it asks for nothing"),
        ("{nvidia.com/gpu: 1}", "{}", "7: workloads[0].request: it asks for nothing"),
        ("gpu: 1}", "gpu: 0.5}", "7: workloads[0].request[nvidia.com/gpu]: 0.5 is not whole"),
        (
            "gpu: 1}",
            "gpu: 99999999999999999999999}",
            "7: workloads[0].request[nvidia.com/gpu]: 99999999999999999999999 is too large; write",
        ),
        ("gpu: 1}", "gpu: -1}", "7: workloads[0].request[nvidia.com/gpu]: -1 is negative"),
        ("gpu: 1}", "gpu: 1x}", "7: workloads[0].request[nvidia.com/gpu]: '1x' is no amount"),
        ("gpu: 1}", "gpu: 1, pods: 1}", "7: workloads[0].request[pods]: every pod counts as one"),
        (
            "gpu: 1}",
            "gpux: 1}",
            "7: workloads[0].request[nvidia.com/gpux]: no pool has nvidia.com/gpux",
        ),
        ("gpu: 1}", "GP U: 1}", "is no resource; write one such as nvidia.com/gpu"),
        (", request: {nvidia.com/gpu: 1}", "", "7: workloads[0]: request is missing"),
        ("8, cpu: 32", "8, cpu: 32, cpu: 16", "2: pools[0].capacity[cpu]: it is written twice"),
        ("8, cpu", "8.5, cpu", "2: pools[0].capacity[nvidia.com/gpu]: 8.5 is not whole"),
        ("{name: main, ", "{name: main, placement: pak, ", "'pak' is not valid; use pack or"),
        (
            "{name: main, ",
            "{name: main, topology: [a b], ",
            "pools[0].topology[0]: 'a b' is no label",
        ),
        ("tenant: a", "tenant: a, topology: zone", "7: workloads[0].topology: 'zone' is no level"),
        ("{name: main, ", "{name: main, maxCapacity: {}, ", "a simulated pool does not grow"),
        ("{name: main, ", "{name: main, nodes: [], ", "the pool has a capacity as well"),
        (", capacity: {nvidia.com/gpu: 8, cpu: 32}", "", "neither capacity nor nodes are written"),
        ("pools: [", "pools: x #", "2: pools: this is a single value; write a list"),
        ("pools: [{name: main, capacity: {nvidia.com/gpu: 8, cpu: 32}}]", "", "neither pools nor"),
        ("until: 2h", "until: tomorrow", "8: until: 'tomorrow' is no length of time"),
        ("until: 2h", "", "1: until is missing"),
        ("until: 2h", "until: 2h\nuntil: 3h", "9: until: it is written twice (line 8)"),
        ('"off"', "sometimes", "1: policy.reclaim: 'sometimes' is not valid"),
        ('reclaim: "off"', "history: -0.5", "1: policy.history: -0.5 is negative"),
        ('reclaim: "off"', "halfLife: 0s", "1: policy.halfLife: '0s' is no time at all"),
        ('reclaim: "off"', "halflife: 4h", "policy.halflife: there is no such field (did you mean"),
        ('{reclaim: "off"}', "[]", "1: policy: this is a list; write a map"),
        ('{reclaim: "off"}', "", "1: policy: this is empty; write a map"),
        ("policy:", "plicy:", "1: plicy: there is no such field (did you mean policy?)"),
    ],
)
def test_mistake_is_reported_with_line_path_and_advice(old: str, new: str, told: str) -> None:
    message = refused(changed(old, new))

    assert message.startswith("s.yaml:")
    assert told in message
    assert all(line.endswith(".") for line in message.splitlines())
    assert len(message.splitlines()) == 1, message


def test_cycle_of_parents_is_reported_once() -> None:
    text = changed("  - {name: a}\n", "  - {name: a, parent: b}\n").replace(
        "{name: b}", "{name: b, parent: a}"
    )
    message = refused(text)

    assert "s.yaml:4: tenants[0].parent: the parents a -> b -> a are a circle" in message
    assert message.count("circle") == 1


def test_guarantee_without_a_pool_is_refused_if_there_are_several_pools() -> None:
    text = changed("}}]\nten", "}}, {name: other, capacity: {cpu: 1}}]\nten").replace(
        "{name: b}", "{name: b, guarantee: {cpu: 1}}"
    )
    assert "5: tenants[1].guarantee: there are several pools; write quotas" in refused(text)


def test_all_mistakes_are_reported_together_in_file_order() -> None:
    text = changed("{name: b}", "{name: b, weight: -1, limit: 3}").replace("2h", "2")
    lines = refused(text).splitlines()

    assert [line.split(":")[1] for line in lines] == ["5", "5", "8"]


def test_second_workload_with_the_same_name_is_refused() -> None:
    text = changed("until", "  - {name: w, tenant: b, request: {cpu: 1}}\nuntil")

    assert "s.yaml:8: workloads[1]: there is a workload w-0 already (line 7)" in refused(text)


def test_work_in_place_must_fit() -> None:
    text = changed("tenant: a,", "tenant: a, count: 9, running: true,")

    assert "s.yaml:7: workloads[0]: w-8 is to run before the start" in refused(text)


def test_work_in_place_must_outlast_the_start() -> None:
    text = changed("tenant: a,", "tenant: a, count: 2, running: true, duration: 2s,")

    assert "7: workloads[0].duration: w-0, released 2 s before the start" in refused(text)


def test_work_in_place_arrives_at_no_time() -> None:
    text = changed("tenant: a,", "tenant: a, at: 5s, running: true,")

    assert "7: workloads[0].at: it is running before the start; leave at out." in refused(text)


def test_a_pool_that_a_tenant_may_not_use_is_refused() -> None:
    text = changed("}}]\nten", "}}, {name: other, capacity: {cpu: 1}}]\nten")
    text = text.replace("{name: a}", "{name: a, pools: [main]}").replace(
        "gpu: 1}", "gpu: 1}, pool: other"
    )

    assert "7: workloads[0].pool: tenant a may not use pool other; write main." in refused(text)


def test_a_request_that_no_single_pool_offers_is_refused() -> None:
    text = changed("}}]\nten", "}}, {name: other, capacity: {memory: 1Gi}}]\nten")
    text = text.replace("gpu: 1}", "gpu: 1, memory: 1}")

    assert "7: workloads[0].request: no pool has all of it together, even when it" in refused(text)


NODES = """\
nodes:
  - {name: n, count: 2, capacity: {nvidia.com/gpu: 4, cpu: 8}}
  - {name: wide, capacity: {nvidia.com/gpu: 1, cpu: 64}}
tenants: [{name: a}]
workloads:
  - {name: w, tenant: a, pods: 2, request: {nvidia.com/gpu: 3, cpu: 4}}
until: 1h
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("gpu: 3", "gpu: 5", "6: workloads[0].request[nvidia.com/gpu]: no node has 5, even when"),
        ("gpu: 3", "gpu: 5", "the largest has 4; ask for less, or write a larger node."),
        ("cpu: 4}", "cpu: 65}", "6: workloads[0].request[cpu]: no node has 65, even when"),
        ("cpu: 4}", "cpu: 9}", "6: workloads[0].request: no node has all of it together"),
        ("pods: 2", "pods: 3", "6: workloads[0].pods: of the 3 pods that start together only 2"),
    ],
)
def test_workload_that_does_not_fit_on_empty_nodes_is_refused(
    old: str, new: str, told: str
) -> None:
    assert len(read(NODES).works) == 1
    message = refused(NODES.replace(old, new))

    assert told in message
    assert len(message.splitlines()) == 1


def test_workload_that_does_not_fit_in_its_allowed_pools_is_refused() -> None:
    text = changed("}}]\nten", "}}, {name: other, capacity: {nvidia.com/gpu: 16}}]\nten")
    text = text.replace("gpu: 1}", "gpu: 9}")

    assert len(read(text).works) == 1
    for narrow in (
        text.replace("{name: a}", "{name: a, pools: [main]}"),
        text.replace("tenant: a,", "tenant: a, pool: main,"),
    ):
        assert "no pool has 9, even when it is empty, the largest has 8" in refused(narrow)


def test_running_workload_that_can_never_fit_is_reported_once() -> None:
    text = changed("tenant: a,", "tenant: a, running: true, pods: 9,")

    assert len(refused(text).splitlines()) == 1


def test_node_in_two_pools_is_refused() -> None:
    text = changed(
        "pools: [{name: main, capacity: {nvidia.com/gpu: 8, cpu: 32}}]",
        """\
pools: [{name: big, nodeSelector: {kind: big}}, {name: east, nodeSelector: {zone: east}}]
nodes: [{name: n, capacity: {nvidia.com/gpu: 8}, labels: {kind: big, zone: east}}]""",
    )
    assert "2: pools[1]: it selects nodes that belong to another pool" in refused(text)


def test_only_the_resources_written_are_managed() -> None:
    scenario = read("managed: [nvidia.com/*]\n" + PLAIN)

    assert GPU in scenario.managed
    assert "cpu" not in scenario.managed
    assert scenario.counted == {GPU: 8}
    assert scenario.capacity == {GPU: 8, "cpu": 32_000}
    assert scenario.device == GPU


def test_a_resource_that_a_pool_weighs_counts_though_it_is_not_managed() -> None:
    text = "managed: [nvidia.com/gpu]\n" + changed(
        "{name: main, ", "{name: main, weights: {cpu: 1}, "
    )

    assert read(text).counted.keys() == {GPU, "cpu"}


@pytest.mark.parametrize(
    ("managed", "old", "new", "told"),
    [
        ("[nvidia.com/gpus]", "", "", "1: managed[0]: no pool has nvidia.com/gpus (did you mean"),
        ('["amd.com/*"]', "", "", "1: managed[0]: no pool has amd.com/*; write a resource of"),
        ("[nvidia.com/g*u]", "", "", "1: managed[0]: 'nvidia.com/g*u' is no resource"),
        ("nvidia.com/gpu", "", "", "1: managed: this is a single value; write a list"),
        ("[]", "", "", "1: managed: no resource is named; write one, or leave managed out"),
        (
            "[nvidia.com/gpu]",
            "{nvidia.com/gpu: 1}",
            "{cpu: 1}",
            "8: workloads[0].request: it asks for nothing that is managed",
        ),
        (
            "[nvidia.com/gpu]",
            "{name: b}",
            "{name: b, limit: {cpu: 1}}",
            "6: tenants[1].limit[cpu]: cpu is not managed, so no limit counts",
        ),
    ],
)
def test_managed_resources_that_make_no_sense_are_refused(
    managed: str, old: str, new: str, told: str
) -> None:
    text = f"managed: {managed}\n" + (changed(old, new) if old else PLAIN)
    message = refused(text)

    assert told in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("text", ["2d", "1.5h", "250ms", "5", "0", "", "1m1h"])
def test_times_that_a_cluster_would_refuse_are_refused_in_a_policy(text: str) -> None:
    with pytest.raises(InvalidInput, match="no length of time to a cluster"):
        value_parsers.cluster_time(text)
    message = refused(changed('reclaim: "off"', f"minCharge: '{text}'"))
    assert "1: policy.minCharge:" in message
    assert "7: workloads[0].maxRuntime:" in refused(
        changed("tenant: a,", f"tenant: a, maxRuntime: '{text}',")
    )


def test_the_policy_of_a_scenario_has_every_field_that_the_engine_has() -> None:
    live = {"mode", "scheduling_timeout", "gang_timeout", "evict_unowned", "max_unbound"}
    live.add("max_unowned_unbound")
    """Of the cluster alone: in virtual time all is enforced, whole, and bound once released."""
    known = {f.name for f in fields(Policy)}
    assert {attribute for attribute, _ in FIELDS.values()} == known - live


def test_second_node_with_the_same_name_is_refused() -> None:
    text = changed("}}]\nten", "}}]\nnodes: [{name: main, capacity: {cpu: 1}}]\nten")

    assert "there is a node main already" in refused(text)


def test_pool_that_selects_no_node_is_refused() -> None:
    text = changed(
        "pools: [{name: main, capacity: {nvidia.com/gpu: 8, cpu: 32}}]",
        "pools: [{name: main, nodeSelector: {kind: x}}]\n"
        "nodes: [{name: n, capacity: {nvidia.com/gpu: 8}}]",
    )
    assert "2: pools[0]: no node has the labels it selects" in refused(text)


def test_more_pods_than_can_be_simulated_are_refused() -> None:
    text = changed("tenant: a,", "tenant: a, count: 2000, pods: 2000,")

    assert "7: workloads[0]: there are more than 1000000 pods" in refused(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "s.yaml: the file is empty"),
        ("# only words\n", "s.yaml: the file is empty"),
        ("a: [1\nb: 2", "s.yaml:2: this is not YAML"),
        ("a: b: c", "s.yaml:1: this is not YAML"),
        ("a: \0", "s.yaml: this is not YAML"),
        ("[" * 5000, "s.yaml: it is nested too deeply"),
        ("- 1", "s.yaml:1: this is a list; write a map"),
        ("hello", "s.yaml:1: this is a single value; write a map"),
        (PLAIN + "---\n" + PLAIN, "s.yaml:9: this is not YAML"),
    ],
)
def test_invalid_scenario_file_is_refused(text: str, told: str) -> None:
    assert told in refused(text)


def test_a_flood_of_mistakes_is_cut_short() -> None:
    many = "".join(f"  - {{name: t{i}, weight: x}}\n" for i in range(50))
    lines = refused(changed("  - {name: b}\n", many)).splitlines()

    assert len(lines) == 21
    assert lines[-1] == "s.yaml: 30 more mistakes of this kind."


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"there is no file .*none.yaml; write the path"):
        load(str(tmp_path / "none.yaml"))
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(str(tmp_path))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"pools:\n\xff")
    with pytest.raises(InvalidInput, match=r"binary.yaml:2: this is not UTF-8"):
        load(str(binary))


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(PLAIN.encode())))

    assert load("-").name == "standard input"


def test_the_example_is_a_scenario() -> None:
    example = DOCS / "examples" / "two-teams.yaml"

    assert len(load(str(example)).works) == 40 + 4 + 12 + 1 + 4


def test_scenario_in_the_docs_has_every_field_and_the_default_policy() -> None:
    page = (DOCS / "scenarios.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    written = yaml.safe_load(example)
    nodes = [node for pool in written["pools"] for node in pool.get("nodes", ())]

    assert parse(example, "scenarios.md").policy == replace(
        DEFAULT_POLICY, reclaim=Reclaim.GUARANTEE
    )
    assert set(_WORK_FIELDS) == {field for work in written["workloads"] for field in work}
    assert set(_NODE_FIELDS) == {field for node in nodes for field in node}
    assert set(FIELDS) == set(written["policy"])
    assert {*written, "nodes"} == set(_FIELDS)
    for field in (*_TENANT_FIELDS, *_POOL_FIELDS):
        assert field in page


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("0", 0),
        ("0s", 0),
        ("250ms", 250),
        ("90s", 90_000),
        ("1.5h", 5_400_000),
        ("1h30m", 5_400_000),
        ("2d4h", 187_200_000),
        ("1m1ms", 60_001),
    ],
)
def test_lengths_of_time_are_exact(text: str, millis: int) -> None:
    assert value_parsers.duration(text) == millis


@pytest.mark.parametrize(
    "text",
    ["", "5", "1.5", "s", "-1s", "1s1m", "1h1h", "1 h", "1w", "0.1ms", "1e3s", "\uff11s", "nan"],
)
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        value_parsers.duration(text)
