"""Submitters by the uid of an owner, without an API server."""

from __future__ import annotations

from app.core.admission.submitters import OwnerRef
from app.core.errors import ClusterUnavailable
from app.core.model import UserName


class FakeSubmitters:
    """`ports.cluster.SubmitterLookup`: `known` has the submitters."""

    def __init__(self) -> None:
        self.known: dict[str, UserName] = {}
        self.asked: list[str] = []
        self.silent = False
        """No request gets through."""

    async def submitter_of(self, namespace: str, owner: OwnerRef) -> UserName | None:
        self.asked.append(owner.uid)
        if self.silent:
            raise ClusterUnavailable("no answer")
        return self.known.get(owner.uid)
