"""The patches that add Fairgate's finalizer to resource claims."""

from __future__ import annotations

import json
from typing import Any, cast

from app.core.effects import ClaimAddress
from app.core.model import Uid
from app.core.well_known import ANNOTATION_RELEASE
from app.kube.claim_finalizers import ClaimFinalizers
from app.kube.client import Client

REF = ClaimAddress(Uid("u"), "a", "c")


class Server:
    """Stores one claim; its version rises only if a patch changes something."""

    def __init__(self, annotations: dict[str, str]) -> None:
        self.annotations = annotations
        self.version = 1

    async def request(self, method: str, path: str, *, body: Any, **_: object) -> bytes:
        assert (method, path.rsplit("/", 1)[1]) == ("PATCH", REF.name)
        written = body["metadata"].get("annotations", {})
        if not written.items() <= self.annotations.items():
            self.annotations |= written
            self.version += 1
        meta = {"name": "c", "namespace": "a", "uid": "u", "resourceVersion": str(self.version)}
        return json.dumps({"metadata": meta}).encode()


async def test_release_changes_a_claim_even_if_its_owner_guessed_the_stamp() -> None:
    server = Server({ANNOTATION_RELEASE: "7.1"})
    finalizers = ClaimFinalizers(cast("Client", server))
    versions = [await finalizers.stamp_release(REF, "7.1") for _ in range(2)]
    assert [claim and claim.resource_version for claim in versions] == ["2", "3"]


async def test_a_finalizer_without_a_release_leaves_the_annotation_as_it_is() -> None:
    server = Server({ANNOTATION_RELEASE: "7.1"})
    await ClaimFinalizers(cast("Client", server)).protect(REF)
    assert server.annotations == {ANNOTATION_RELEASE: "7.1"}
