"""The submitter of an object that a controller created, found by its owner references.

A stamp in a template is enough if one of `controllerUsers` creates the pod. These rules cover the
other controllers. Only a caller that may create such objects in every namespace may name an owner:
a tenant could otherwise name the object of a colleague.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.admission.pod_templates import TemplateKind, read_stamps
from app.core.admission.workload_kinds import plural_of
from app.core.model import UserName
from app.core.well_known import ANNOTATION_RELEASE, ANNOTATION_SUBMITTER

Kinds = Mapping[tuple[str, str], Sequence[TemplateKind]]
"""The places of templates by group and resource."""

SERVICE_ACCOUNT = "system:serviceaccount:"

LONGEST_LIMIT_NAME = 512
"""Characters of a name that limits count by. Limits store the names of thousands of users."""


@dataclass(frozen=True, slots=True)
class OwnerRef:
    """The controller of an object, as its owner references name it."""

    api_version: str
    kind: str
    name: str
    uid: str

    @property
    def group(self) -> str:
        """The API group; "" for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def resource(self) -> str:
        """The name in URLs, if the kind has a regular plural."""
        return plural_of(self.kind)


@dataclass(frozen=True, slots=True)
class OwnerAnswer:
    """The result of a look-up. `submitter` is that of the owner, if it is known.

    `is_trusted`: the caller may name an owner. The empty answer is for a caller that names none.
    """

    is_trusted: bool = False
    submitter: UserName | None = None


NO_OWNER = OwnerAnswer()


def controller_of(document: Any) -> OwnerRef | None:
    """Return the controller in the owner references of an object, if it has a controller."""
    references = _member(_member(document, "metadata"), "ownerReferences")
    for each in references if isinstance(references, list) else ():
        if isinstance(each, dict) and each.get("controller") is True:
            keys = ("apiVersion", "kind", "name", "uid")
            found = [each.get(key) for key in keys]
            return OwnerRef(*map(str, found)) if all(found) else None
    return None


def submitter_in(document: Any, owner: OwnerRef, kinds: Kinds) -> UserName | None:
    """Return the submitter in the stamps of an owner; None if it has no stamp.

    The annotation of a pod counts only if Fairgate manages the pod: it checks no other pods.
    """
    if (owner.group, owner.resource) == ("", "pods"):
        annotations = _member(_member(document, "metadata"), "annotations")
        found = _member(annotations, ANNOTATION_SUBMITTER)
        managed = _member(annotations, ANNOTATION_RELEASE) is not None
        return UserName(found) if managed and isinstance(found, str) and found else None
    places = kinds.get((owner.group, owner.resource), ())
    return next((UserName(each) for each in read_stamps(places, document) if each), None)


def counts_for_controller(user: UserName, namespace: str) -> bool:
    """Return whether the user of an owned pod is a controller, so that its submitter is unknown.

    Controllers have service accounts of other namespaces. An account of the pod's own namespace is
    a submitter like any other.
    """
    if user == "system:kube-controller-manager":
        return True
    home, _, name = user.removeprefix(SERVICE_ACCOUNT).partition(":")
    return user.startswith(SERVICE_ACCOUNT) and bool(name) and home != namespace


def limit_name(user: str) -> str:
    """Return the name by which limits count a user.

    All service accounts of a namespace have one name, because an admin of the namespace may create
    any number. Users whose names begin with the same `LONGEST_LIMIT_NAME` characters have one name.
    """
    namespace, colon, _ = user.removeprefix(SERVICE_ACCOUNT).partition(":")
    is_account = colon and user.startswith(SERVICE_ACCOUNT)
    return (SERVICE_ACCOUNT + namespace if is_account else user)[:LONGEST_LIMIT_NAME]


def _member(of: Any, key: str) -> Any:
    return of.get(key) if isinstance(of, dict) else None
