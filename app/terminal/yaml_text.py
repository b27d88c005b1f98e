"""Writes YAML that Kubernetes' tools read as it was meant.

PyYAML leaves some text unquoted that kubectl, Helm and yq read as a number or a truth value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

_NO_TEXT = re.compile(
    r"[-+]?((\.\d+|\d+(\.\d*)?)(e[-+]?\d+)?|0(o[0-7]+|x[\da-f]+|b[01]+))|[yn]",
    re.ASCII | re.IGNORECASE,
)
"""Plain scalars that YAML 1.2, or the parser of kubectl, reads as no text."""


class _Dumper(yaml.SafeDumper):
    """Quotes every text that could be read as something else."""


def _quote_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _NO_TEXT.fullmatch(text.replace("_", "")) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _quote_text)


def dump_yaml(documents: Iterable[Any], **options: Any) -> str:
    """Return documents as YAML, with keys in their order. `options`: those of `yaml.dump_all`."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, **options))
