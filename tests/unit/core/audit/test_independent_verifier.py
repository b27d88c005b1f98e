"""The verifier of docs/examples accepts real chains, and finds every manipulation."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.core.audit.codec import head_line, line
from app.core.audit_entry import Head, seal
from app.core.model import Millis
from tests.fakes.fake_audit_stream import FakeKey
from tests.support.audit_world import World, held

FILE = Path(__file__).parents[4] / "docs" / "examples" / "verify_audit.py"
Lines = list[str]


@pytest.fixture(scope="module")
def verifier() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_audit", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def export(world: World) -> Lines:
    """Return the chain as `GET /v1/audit` does: all entries, then the newest head."""
    assert world.stream.signed is not None
    return [*(text for _, text in world.stream.rows), head_line(world.stream.signed)]


@pytest.fixture
async def world() -> World:
    world = World()
    await world.term(1, 6)
    await world.term(2, 4)
    return world


def key_of(lines: Lines) -> str:
    return str(json.loads(lines[-1])["head"]["publicKey"])


async def test_a_whole_chain_holds(verifier: ModuleType, world: World) -> None:
    lines = export(world)
    assert verifier.verify(lines, key_of(lines)) == (len(lines) - 1, 0)
    assert len(lines) > 10


async def test_a_chain_with_a_gap_and_another_key_holds(verifier: ModuleType, world: World) -> None:
    world.stream.flush()
    await world.term(3, 3)
    world.key = FakeKey()
    await world.term(4, 2)
    lines = export(world)
    assert {"gap", "key"} <= {json.loads(text).get("deed") for text in lines}
    assert verifier.verify(lines, key_of(lines)) == (len(lines) - 1, 1)


async def test_a_chain_whose_beginning_was_removed_holds(
    verifier: ModuleType, world: World
) -> None:
    chain = await world.term(3, 3)
    world.now = Millis(world.now + 5_000)
    await chain.prune()
    await chain.anchor()
    lines = export(world)
    assert json.loads(lines[0])["number"] > 1
    assert verifier.verify(lines, key_of(lines))[0] == len(lines) - 1


def edit(index: int, /, **fields: Any) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        return [*lines[:index], json.dumps(json.loads(lines[index]) | fields), *lines[index + 1 :]]

    return change


def edit_head(**fields: Any) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        head = json.loads(lines[-1])["head"] | fields
        return [*lines[:-1], json.dumps({"audit": True, "head": head})]

    return change


def sealed_again(lines: Lines) -> Lines:
    """Replace the last entry by another one with a correct hash."""
    last = json.loads(lines[-2])
    entry = seal(Head(last["number"] - 1, last["before"]), last["epoch"], held(99))
    return [*lines[:-2], line(entry), lines[-1]]


def forged_gap(lines: Lines) -> Lines:
    """Remove two entries, and name a gap in their place."""
    before, after = json.loads(lines[3]), json.loads(lines[6])
    facts = {
        "after": {"number": before["number"], "hash": before["hash"]},
        "upTo": {"number": after["number"] - 1, "hash": after["before"]},
    }
    return [*lines[:4], json.dumps(after | {"deed": "gap", "facts": facts}), *lines[7:]]


MANIPULATIONS: dict[str, Callable[[Lines], Lines]] = {
    "a changed fact": edit(4, facts={"pod": "other"}),
    "a changed time": edit(4, at=11),
    "a changed epoch": edit(4, epoch=2),
    "another field": edit(4, more=1),
    "an entry removed": lambda lines: [*lines[:4], *lines[5:]],
    "the first entry removed": lambda lines: lines[1:],
    "the last entry removed": lambda lines: [*lines[:-2], lines[-1]],
    "two entries exchanged": lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]],
    "an entry repeated": lambda lines: [*lines[:4], lines[3], *lines[4:]],
    "an entry with a correct hash": sealed_again,
    "a forged gap": forged_gap,
    "no head": lambda lines: lines[:-1],
    "a head of another time": edit_head(at=99),
    "a head of another epoch": edit_head(epoch=1),
    "a name twice": lambda lines: [lines[0].replace("{", '{"at":1,', 1), *lines[1:]],
    "entries after the head": lambda lines: [*lines[:-2], lines[-1], lines[-2]],
}


@pytest.mark.parametrize("name", MANIPULATIONS)
async def test_a_manipulation_is_found(verifier: ModuleType, world: World, name: str) -> None:
    lines = export(world)
    with pytest.raises(SystemExit, match="broken: "):
        verifier.verify(MANIPULATIONS[name](lines), key_of(lines))


async def test_a_chain_that_another_key_signs_is_found(verifier: ModuleType, world: World) -> None:
    other = World()
    await other.term(1, 3)
    with pytest.raises(SystemExit, match="not signed by the pinned key"):
        verifier.verify(export(other), key_of(export(world)))
