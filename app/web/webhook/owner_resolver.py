"""Look-ups of the webhook in the API server: may a caller name an owner, and who submitted it.

They are bounded in time. If they fail, the request is decided without them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from app.core.admission.submitters import NO_OWNER, OwnerAnswer, OwnerRef
from app.core.errors import ClusterError
from app.k8s_types.admission import AdmissionRequest
from app.ports.auth import Authorizer, Identity
from app.ports.cluster import SubmitterLookup
from app.web.metrics import OWNER_LOOKUPS

log = logging.getLogger("fairgate.web")

AT_ONCE = 8
"""Most concurrent look-ups, so that a flood leaves connections to other requests."""

TIMEOUT = 2.0
"""Seconds for all look-ups of one request, less than the time-out of the webhook."""


class OwnerResolver:
    """Answers for one request at a time, with the caches of its two ports."""

    def __init__(
        self, controllers: Sequence[str], authorizer: Authorizer, submitters: SubmitterLookup
    ) -> None:
        """`controllers`: users that may name any owner, without a question to the API server."""
        self._controllers = frozenset(controllers)
        self._authorizer = authorizer
        self._submitters = submitters
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def find_submitter(self, request: AdmissionRequest[Any], owner: OwnerRef) -> OwnerAnswer:
        """Return the submitter of the owner that a request names. Never raises a ClusterError."""
        answer, result = NO_OWNER, "failed"
        try:
            async with asyncio.timeout(TIMEOUT), self._slots:
                if await self._may_name_owners(request):
                    found = await self._submitters.submitter_of(request.namespace, owner)
                    answer, result = OwnerAnswer(True, found), "found" if found else "none"
                else:
                    result = "not-trusted"
        except (ClusterError, TimeoutError) as error:
            log.warning("could not look up an owner", extra={"why": str(error) or "too slow"})
        OWNER_LOOKUPS.labels(result).inc()
        return answer

    async def _may_name_owners(self, request: AdmissionRequest[Any]) -> bool:
        """Return whether the caller is a controller, or may create such objects everywhere."""
        user, asked = request.user_info, request.resource
        if user.username in self._controllers:
            return True
        extra = tuple((key, tuple(values)) for key, values in sorted((user.extra or {}).items()))
        identity = Identity(user.username, user.uid, tuple(user.groups), extra)
        return await self._authorizer.allows(identity, "create", asked.resource, group=asked.group)
