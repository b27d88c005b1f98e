"""The table of attacks in docs/security.md agrees with the tests in tests/e2e/attacks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.attacks.outcomes import BEGIN, END, PAGE, ROWS, TABLE_MODES

ATTACKS = Path(__file__).parents[1] / "e2e" / "attacks"
LAYERS = {*"KPWRDTX-", "not its layer"}


def table() -> dict[int, list[str]]:
    """Return the cells of each row: attacks, the layers in each mode, the answers."""
    _, _, rest = PAGE.read_text().partition(BEGIN)
    lines = rest.partition(END)[0].strip().splitlines()[2:]
    rows = [line.strip("| ").replace("\\|", "").split(" | ") for line in lines]
    return {int(cells[0]): cells[1:] for cells in rows}


def texts(node: ast.expr, values: dict[str, ast.expr]) -> Iterator[str]:
    """Yield the possible texts of an expression. Computed texts are omitted."""
    match node:
        case ast.Constant(value=value):
            yield str(value)
        case ast.Name(id=name) if name in values:
            yield from texts(values[name], values)
        case _:
            return


def assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Return the names that these statements assign, with their expressions."""
    found = {}
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = zip(names, values, strict=True)
                found |= {name.id: value for name, value in pairs if isinstance(name, ast.Name)}
    return found


def recorded() -> Iterator[tuple[int, str]]:
    """Yield row and attack of each call of `outcomes` that names its attack in the source."""
    for path in sorted(ATTACKS.glob("test_*.py")):
        module = ast.parse(path.read_text())
        for test in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)):
            values = assigned(module.body) | assigned(test.body)
            for call in (node for node in ast.walk(test) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Name) and call.func.id == "outcomes":
                    [row] = texts(call.args[0], values)
                    yield from ((int(row), attack) for attack in texts(call.args[2], values))


def literals() -> set[str]:
    """Return all texts in the source of the attacks."""
    trees = [ast.parse(path.read_text()) for path in sorted(ATTACKS.glob("*.py"))]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {str(node.value) for node in nodes if isinstance(node, ast.Constant)}


def test_each_recorded_attack_is_in_its_row() -> None:
    rows = table()
    missing = [(row, what) for row, what in recorded() if what not in rows[row][0].split("; ")]
    assert len(set(recorded())) > 80
    assert missing == []


def test_each_attack_of_the_table_is_tried() -> None:
    tried, source = set(recorded()), literals()
    attacks = [(row, each) for row, cells in table().items() for each in cells[0].split("; ")]
    assert [each for each in attacks if each not in tried and each[1] not in source] == []


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_a_layer_in_each_mode(row: int) -> None:
    _, *modes, _ = table()[row]
    assert len(modes) == len(TABLE_MODES)
    assert all(set(cell.split(", ")) <= LAYERS for cell in modes)
