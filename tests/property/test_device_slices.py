"""Whatever happens to slices, claims and nodes, the capacity equals that of a new reader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.model import Amounts, Node, NodeName
from app.core.placement.device_capacity import DeviceCapacity
from app.core.podspec.devices import CounterUse, NodeReach, ResourceSlice
from app.core.podspec.resource_claims import Classes, ResourceClaim
from app.core.quantities import CPU, ManagedResources
from tests.support.device_slices import GPU, GPUS, SICK, Words, allocated, device, published

NODES = (NodeName("n1"), NodeName("n2"))
REACHES = (*NODES, NodeReach(every=True))
KINDS = ("gpu", "nic")


@st.composite
def slices(draw: st.DrawFn) -> ResourceSlice:
    """Return one of few slices of three pools, in three generations."""
    reach = draw(st.sampled_from(REACHES))
    home = reach if isinstance(reach, str) else "wide"
    number, generation = draw(st.integers(0, 1)), draw(st.integers(1, 3))
    names = draw(st.lists(st.integers(0, 4), unique=True, max_size=4))
    uses = [CounterUse("set", "m", draw(st.integers(1, 4)))] if draw(st.booleans()) else []
    devices = [
        device(
            f"gpu-{each}",
            draw(st.sampled_from(KINDS)),
            *([SICK] if draw(st.booleans()) else []),
            uses=uses,
            shared=draw(st.booleans()),
        )
        for each in names
    ]
    return published(
        reach,
        *devices,
        name=f"{home}-{number}",
        pool=home,
        generation=generation,
        count=draw(st.integers(1, 2)),
        counters=[CounterUse("set", "m", 4)] if draw(st.booleans()) else [],
    )


@st.composite
def claims(draw: st.DrawFn) -> ResourceClaim:
    pool = draw(st.sampled_from(("n1", "n2", "wide")))
    names = draw(st.lists(st.integers(0, 4), unique=True, max_size=3))
    return allocated(f"c{draw(st.integers(0, 2))}", pool, *(f"gpu-{each}" for each in names))


STEPS = st.one_of(
    slices(),
    claims(),
    st.sampled_from(("n1-0", "n1-1", "n2-0", "wide-0", "wide-1")),
    st.tuples(st.sampled_from(NODES), st.booleans()),
)


class World:
    """The objects that exist, and a reader that follows every change."""

    def __init__(self) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.claims: dict[tuple[str, str], ResourceClaim] = {}
        self.nodes = {name: node(name, ready=True) for name in NODES}
        self.reader = reader()
        self.known: dict[NodeName, Amounts] = {}
        for each in self.nodes.values():
            self.known[each.name] = self.reader.put_node(each).allocatable

    def take(self, step: ResourceSlice | ResourceClaim | str | tuple[NodeName, bool]) -> None:
        if isinstance(step, ResourceSlice):
            self.slices[step.name] = step
            self.reader.inventory.put_slice(step)
        elif isinstance(step, ResourceClaim):
            self.claims[step.key] = step
            self.reader.put_claim(step)
        elif isinstance(step, str):
            self.slices.pop(step, None)
            self.reader.inventory.drop_slice(step)
        else:
            name, ready = step
            self.nodes[name] = node(name, ready=ready)
            self.known[name] = self.reader.put_node(self.nodes[name]).allocatable
        for changed in self.reader.drain_changed_nodes():
            self.known[changed.name] = changed.allocatable

    def counted_again(self) -> dict[NodeName, Amounts]:
        """Return the capacity that a reader of only the present objects counts."""
        fresh = reader()
        for each in self.slices.values():
            fresh.inventory.put_slice(each)
        for claim in self.claims.values():
            fresh.put_claim(claim)
        for known in self.nodes.values():
            fresh.put_node(known)
        return {
            name: fresh.with_slice_devices(known).allocatable for name, known in self.nodes.items()
        }


def reader() -> DeviceCapacity:
    classes = Classes(ManagedResources([GPU]), {GPUS.name: GPU})
    classes.store_class(GPUS)
    return DeviceCapacity(classes, Words())


def node(name: NodeName, *, ready: bool) -> Node:
    return Node(name, {}, {CPU: 1000}, ready)


@given(st.lists(STEPS, max_size=25))
def test_the_capacity_equals_a_recount_after_any_changes(
    steps: list[ResourceSlice | ResourceClaim | str | tuple[NodeName, bool]],
) -> None:
    world = World()
    for step in steps:
        world.take(step)
        assert world.known == world.counted_again()


@given(slices(), st.lists(claims(), max_size=3))
def test_capacity_is_never_more_than_devices_and_allocations(
    one: ResourceSlice, held: list[ResourceClaim]
) -> None:
    counts = reader()
    counts.put_node(node(NODES[0], ready=True))
    counts.inventory.put_slice(one)
    for each in held:
        counts.put_claim(each)
    allocations = sum(len(each.allocated_devices or ()) for each in held)
    assert counts.slice_capacity(NODES[0]).get(GPU, 0) <= len(one.devices) + allocations
