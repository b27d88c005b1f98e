"""Records the outcome of each attack in each mode, and writes the table in docs/security.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"
TABLE_MODES = ("everything", "policies", "webhook")
ROWS = range(1, 38)
NOT_ITS_LAYER = "not its layer"

_NAMES = re.compile(r'"[a-z]+-\d+(-[a-z0-9]+)*"')
_ADDRESS = re.compile(r": failed to call webhook: .*")


@dataclass(frozen=True)
class Outcome:
    """One attack in one mode: the layer that stopped it, and the answer that the attacker saw.

    `layer` is one or more of K P W R D T X, "outage", or NOT_ITS_LAYER if no layer of this mode can
    detect the attack.
    """

    row: int
    mode: str
    attack: str
    layer: str
    saw: str


class Outcomes:
    """Collects outcomes. A row of the table may consist of several outcomes."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], list[Outcome]] = {}

    def __call__(self, row: int, mode: str, attack: str, layer: str, saw: str) -> None:
        """Record an outcome. `saw` is a short quotation of the answer, or the observed effect."""
        outcome = Outcome(row, mode, attack, layer, _essence(" ".join(saw.split())))
        self._found.setdefault((row, mode), []).append(outcome)

    @property
    def is_whole(self) -> bool:
        """Whether every row was tried in every mode of the table."""
        return all((row, mode) in self._found for row in ROWS for mode in TABLE_MODES)

    def write(self) -> None:
        """Write the table into the page, between its two markers."""
        text = PAGE.read_text()
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{self.table()}{END}{after}")

    def table(self) -> str:
        """Return the table in Markdown: one line per row, one column per mode."""
        lines = ["| # | attack | " + " | ".join(TABLE_MODES) + " | what was seen |"]
        lines.append("|---|---|" + "---|" * (len(TABLE_MODES) + 1))
        for row in ROWS:
            found = {mode: self._found[row, mode] for mode in TABLE_MODES}
            cells = [", ".join(dict.fromkeys(each.layer for each in found[mode])) for mode in found]
            tried = (each.attack for mode in found for each in found[mode])
            attacks = "; ".join(dict.fromkeys(tried))
            saw = "; ".join(dict.fromkeys(each.saw for each in found[TABLE_MODES[0]]))
            lines.append("| " + " | ".join([str(row), attacks, *cells, _plain(saw)]) + " |")
        return "\n".join(lines) + "\n"


def _essence(saw: str) -> str:
    """Return Fairgate's message in an answer, or else the answer, without its variable parts."""
    _, found, sentence = saw.partition("Fairgate: ")
    return _NAMES.sub('"..."', found + sentence if found else _ADDRESS.sub("", saw))


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
