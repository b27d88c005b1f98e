"""What became of each attack in each mode, and the table of it in docs/security.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"
TABLE_MODES = ("everything", "policies", "webhook")
ROWS = range(1, 32)
NOT_ITS_LAYER = "not its layer"

_NAMES = re.compile(r'"[a-z]+-\d+"')
_ADDRESS = re.compile(r": failed to call webhook: .*")


@dataclass(frozen=True)
class Outcome:
    """One attack in one mode: who stopped it, and what whoever tried it saw.

    `layer`: one or more of K P W R D T X, "outage", or NOT_ITS_LAYER where the layers of this mode
    cannot see it.
    """

    row: int
    mode: str
    attack: str
    layer: str
    saw: str


class Outcomes:
    """Collects outcomes; a row may be told of in several parts."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], list[Outcome]] = {}

    def __call__(self, row: int, mode: str, attack: str, layer: str, saw: str) -> None:
        """Record what was seen. `saw`: a short quotation of the answer, or of what happened."""
        outcome = Outcome(row, mode, attack, layer, _essence(" ".join(saw.split())))
        self._found.setdefault((row, mode), []).append(outcome)

    @property
    def is_whole(self) -> bool:
        """Whether every row was tried in every mode of the table."""
        return all((row, mode) in self._found for row in ROWS for mode in TABLE_MODES)

    def write(self) -> None:
        """Put the table into the page, between its two marks."""
        text = PAGE.read_text()
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{self.table()}{END}{after}")

    def table(self) -> str:
        """Return the table in Markdown: a line a row, a column a mode."""
        lines = ["| # | attack | " + " | ".join(TABLE_MODES) + " | what was seen |"]
        lines.append("|---|---|" + "---|" * (len(TABLE_MODES) + 1))
        for row in ROWS:
            cells, first = [], self._found[row, TABLE_MODES[0]]
            for mode in TABLE_MODES:
                layers = dict.fromkeys(each.layer for each in self._found[row, mode])
                cells.append(", ".join(layers))
            attacks = "; ".join(dict.fromkeys(each.attack for each in first))
            saw = "; ".join(dict.fromkeys(each.saw for each in first))
            lines.append("| " + " | ".join([str(row), attacks, *cells, _plain(saw)]) + " |")
        return "\n".join(lines) + "\n"


def _essence(saw: str) -> str:
    """Return what Fairgate says in an answer, else the answer; without what differs every time."""
    _, found, sentence = saw.partition("Fairgate: ")
    return _NAMES.sub('"..."', found + sentence if found else _ADDRESS.sub("", saw))


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
