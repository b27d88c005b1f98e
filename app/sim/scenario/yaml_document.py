"""A YAML document in which each value has its line and path, for precise error messages.

Independent of scenarios. A reader that finds a mistake notes it and continues with a default, so
that all mistakes are reported together. `YamlDocument.raise_mistakes` raises if there were any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import yaml

from app.core.errors import InvalidInput
from app.sim.scenario.value_parsers import did_you_mean

Value = TypeVar("Value")
Default = TypeVar("Default")

MOST_TOLD = 20

_NULL = "tag:yaml.org,2002:null"


class YamlDocument:
    """One file, and the mistakes found in it so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._mistakes: list[tuple[int, str, str]] = []

    def record_mistake(self, line: int, path: str, sentence: str) -> None:
        """Note a mistake; the same one counts once."""
        if (line, path, sentence) not in self._mistakes:
            self._mistakes.append((line, path, sentence))

    @property
    def mistake_count(self) -> int:
        """Number of mistakes noted so far."""
        return len(self._mistakes)

    def raise_mistakes(self) -> None:
        """Raise InvalidInput with all mistakes, a line each, in the order of the file."""
        found = sorted(self._mistakes, key=lambda mistake: mistake[0])
        told = [
            f"{self.name}:{line}: {path + ': ' if path else ''}{sentence}"
            for line, path, sentence in found[:MOST_TOLD]
        ]
        if len(found) > MOST_TOLD:
            told.append(f"{self.name}: {len(found) - MOST_TOLD} more mistakes of this kind.")
        if told:
            raise InvalidInput("\n".join(told))


@dataclass(frozen=True, slots=True)
class YamlValue:
    """A value and its position in the file."""

    document: YamlDocument
    node: yaml.Node
    path: str

    @property
    def line(self) -> int:
        """First line of the value, from 1."""
        return int(self.node.start_mark.line) + 1

    def add_mistake(self, sentence: str) -> None:
        """Note that this value is wrong."""
        self.document.record_mistake(self.line, self.path, sentence)

    def read(self, reader: Callable[[str], Value], default: Default) -> Value | Default:
        """Return the value as parsed by `reader`; the default if it is wrong."""
        if not isinstance(self.node, yaml.ScalarNode):
            what = "a list" if isinstance(self.node, yaml.SequenceNode) else "a map"
            self.add_mistake(f"this is {what}; write a single value.")
        elif self.node.tag == _NULL:
            self.add_mistake("this has no value; write one, or leave the field out.")
        else:
            try:
                return reader(self.node.value)
            except InvalidInput as error:
                self.add_mistake(str(error))
        return default

    def items(self) -> list[YamlValue]:
        """Return the members of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self.add_mistake(
                f"this is {self._kind()}; write a list, as in [..] or lines with a dash."
            )
            return []
        return [
            YamlValue(self.document, member, f"{self.path}[{index}]")
            for index, member in enumerate(self.node.value)
        ]

    def entries(self) -> dict[str, YamlValue]:
        """Return the entries of a map with free keys, as `path[key]`."""
        return self._map(lambda key: f"{self.path}[{key}]")

    def read_map(self, fields: Sequence[str], needed: Sequence[str] = ()) -> YamlMap:
        """Return a map with known fields. Unknown fields and missing needed fields are noted."""
        dot = f"{self.path}." if self.path else ""
        found = self._map(lambda key: f"{dot}{key}")
        for name, spot in found.items():
            if name not in fields:
                hint = did_you_mean(name, fields) or f"; the fields are {', '.join(fields)}"
                spot.add_mistake(f"there is no such field{hint}.")
        if isinstance(self.node, yaml.MappingNode):
            for name in needed:
                if name not in found:
                    self.add_mistake(f"{name} is missing; write it.")
        return YamlMap(self, found)

    def _map(self, path_of: Callable[[str], str]) -> dict[str, YamlValue]:
        found: dict[str, YamlValue] = {}
        if not isinstance(self.node, yaml.MappingNode):
            self.add_mistake(f"this is {self._kind()}; write a map, as in {{field: value}}.")
            return found
        for key, value in self.node.value:
            at_key = YamlValue(self.document, key, self.path)
            if not isinstance(key, yaml.ScalarNode) or key.tag == _NULL:
                at_key.add_mistake("a field has no name; write field: value.")
                continue
            spot = YamlValue(self.document, value, path_of(key.value))
            if key.value in found:
                first = found[key.value].line
                self.document.record_mistake(
                    at_key.line, spot.path, f"it is written twice (line {first}); leave one out."
                )
            found.setdefault(key.value, spot)
        return found

    def _kind(self) -> str:
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        if isinstance(self.node, yaml.MappingNode):
            return "a map"
        return "empty" if self.node.tag == _NULL else "a single value"


@dataclass(frozen=True, slots=True)
class YamlMap:
    """A map with known fields."""

    value: YamlValue
    fields: Mapping[str, YamlValue]

    def __contains__(self, field: str) -> bool:
        return field in self.fields

    def read(self, field: str, reader: Callable[[str], Value], default: Default) -> Value | Default:
        """Return the value of a field; the default if it is absent or wrong."""
        spot = self.fields.get(field)
        return default if spot is None else spot.read(reader, default)

    def items(self, field: str) -> list[YamlValue]:
        """Return the members of the list in a field; empty if the field is absent."""
        return self.fields[field].items() if field in self.fields else []

    def entries(self, field: str) -> dict[str, YamlValue]:
        """Return the entries of the map in a field; empty if the field is absent."""
        return self.fields[field].entries() if field in self.fields else {}


def parse_yaml(text: str, name: str) -> YamlValue:
    """Return the root value of a YAML text. Raises InvalidInput if it is empty or not YAML."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        why = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise InvalidInput(f"{where}: this is not YAML ({why}); mend it there.") from error
    except yaml.YAMLError as error:
        why = str(error).splitlines()[0]
        raise InvalidInput(f"{name}: this is not YAML ({why}); write plain text.") from error
    except RecursionError as error:
        raise InvalidInput(f"{name}: it is nested too deeply; write it flatter.") from error
    if node is None:
        raise InvalidInput(f"{name}: the file is empty; write a scenario into it.")
    return YamlValue(YamlDocument(name), node, "")
