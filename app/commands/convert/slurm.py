"""Converts a file of `sacctmgr dump` to Tenants: accounts are Tenants, associations are users.

Format of a line: `Kind - 'name':Option=value:Option='value'`. An Account or User belongs to the
last Parent line before it. Source: sacctmgr(1), section "Flat file dump and load".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from app.commands.convert.tenant_documents import (
    GPU,
    ConvertedTenant,
    Notes,
    TenantNames,
    parents_first,
    quantity,
)
from app.core.errors import InvalidInput

ROOT = "root"
SHARE_OF_PARENT = {"parent", "2147483647"}
"""Values of Fairshare that mean: the share of the account."""

_LINE = re.compile(r"\s*(Cluster|Machine|Parent|Account|User)\s+-\s+(.*)", re.IGNORECASE)
_OPTION = re.compile(
    r"""(?:([A-Za-z]+)=)?('[^']*'|"[^"]*"|(?:[^:]|(?<=gres/gpu):)*)(?::|$)""", re.IGNORECASE
)
"""An option and the colon after it. The colon of gres/gpu:MODEL is a part of the value."""
_WITHOUT_MEANING = {
    "description", "organization", "defaultaccount", "adminlevel", "coordinator", "comment",
    "defaultwckey", "wckeys", "classification", "partition", "fairshare", "shares", "grptres",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DumpLine:
    """One line. The names of its options are in lower case, and `spelled` has them as written."""

    origin: str
    kind: str
    name: str
    options: dict[str, str]
    spelled: dict[str, str]


def convert(path: str, text: str, pool: str, notes: Notes) -> list[dict[str, object]]:
    """Return the Tenants, parents first. Raises InvalidInput."""
    names = TenantNames(notes)
    tenants: dict[str, ConvertedTenant] = {}
    parent = ROOT
    for line in _lines(path, text):
        where = f"{line.kind} {line.name}"
        if line.kind == "Parent":
            parent = line.name
            if parent != ROOT and parent not in tenants:
                raise InvalidInput(
                    f"{line.origin}: Parent {parent} has no Account line before it; give the whole "
                    "file of sacctmgr dump."
                )
        elif line.kind == "Account":
            above = tenants[parent].name if parent != ROOT else None
            tenant = ConvertedTenant(names.claim("Account", line.name), above)
            tenant.weight = _weight(line, notes)
            _read_limits(line, tenant, pool, notes)
            tenants[line.name] = tenant
        elif line.kind == "User":
            _read_user(line, tenants.get(parent), notes)
        if line.kind != "Parent":
            _note_options(line, where, notes)
    if not tenants:
        raise InvalidInput(f"{path} has no Account line; give a file of sacctmgr dump.")
    notes.add("Slurm accounts", "they name no namespaces; add `spec.namespaces` to each Tenant.")
    notes.add(
        "Slurm users",
        "a Tenant has user names as Kubernetes authenticates them; change names that differ.",
    )
    return [tenant.document() for tenant in parents_first(tenants.values())]


def _lines(path: str, text: str) -> Iterator[DumpLine]:
    """Yield the lines that are not comments. Raises InvalidInput."""
    for number, written in enumerate(text.splitlines(), 1):
        line = re.sub(r"(?<!\\)#.*", "", written).strip()
        if not line:
            continue
        where = f"{path}:{number}"
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidInput(
                f"{where}: {line[:40]!r} is no line of sacctmgr dump, such as \"Account - 'a'\"; "
                "correct that line."
            )
        pairs = [
            (key, value.strip("'\"")) for key, value in _OPTION.findall(match[2]) if key or value
        ]
        if not pairs or pairs[0][0] or not pairs[0][1]:
            raise InvalidInput(f"{where}: the line has no name; correct that line.")
        options = {key.lower(): value for key, value in pairs[1:]}
        spelled = {key.lower(): key for key, _ in pairs[1:]}
        yield DumpLine(where, match[1].capitalize(), pairs[0][1], options, spelled)


def _weight(line: DumpLine, notes: Notes) -> Fraction | None:
    written = line.options.get("fairshare", line.options.get("shares"))
    if written is None:
        return None
    if written.lower() in SHARE_OF_PARENT:
        notes.add(
            f"{line.kind} {line.name}",
            "Fairshare=parent has no equivalent; the weight is 1.",
        )
        return None
    return quantity(f"{line.origin}: Fairshare", written)


def _read_limits(line: DumpLine, tenant: ConvertedTenant, pool: str, notes: Notes) -> None:
    for entry in filter(None, line.options.get("grptres", "").split(",")):
        resource, _, written = entry.partition("=")
        if resource != "gres/gpu" and not resource.startswith("gres/gpu:"):
            notes.add(
                f"{line.kind} {line.name}",
                f"GrpTRES={resource} is not converted; Fairgate limits GPUs.",
            )
            continue
        if written == "-1":
            continue
        model = resource.partition(":")[2]
        amount = quantity(f"{line.origin}: GrpTRES {resource}", written)
        tenant.limits.setdefault(model or pool, {})[GPU] = amount
        if model:
            notes.add(f"GPU type {model}", "a limit names it; create a Pool of this name.")


def _read_user(line: DumpLine, tenant: ConvertedTenant | None, notes: Notes) -> None:
    if tenant is None:
        if line.name != ROOT:
            notes.add(f"User {line.name}", "users of the account root are left out.")
        return
    if line.options.get("grptres"):
        notes.add(f"User {line.name}", "GrpTRES of a user has no equivalent.")
    if line.name in tenant.users:
        notes.add(
            f"User {line.name}",
            "associations by partition have no equivalent; the first one is converted.",
        )
        return
    tenant.users[line.name] = _weight(line, notes)


def _note_options(line: DumpLine, where: str, notes: Notes) -> None:
    if line.kind == "User" and line.name == ROOT:
        return
    for option, value in line.options.items():
        if option == "coordinator":
            notes.add(
                where, "Coordinator is not converted; `tenantAdmins` of the chart is similar."
            )
        elif option in ("qos", "defaultqos"):
            if value.strip("+,") != "normal":
                notes.add(where, "QOS has no equivalent.")
        elif option not in _WITHOUT_MEANING:
            notes.add(where, f"{line.spelled[option]} has no equivalent.")
