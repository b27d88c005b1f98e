"""The requests that give and withdraw the notice of a reclaim."""

from __future__ import annotations

from typing import Any, cast

import pytest

from app.core.effects import GiveReclaimNotice, PodRef, WithdrawReclaimNotice
from app.core.errors import ClusterRefused
from app.core.model import Millis, Uid
from app.kube.client import Client
from app.kube.reclaim_notices import PodReclaimNotifier

POD = PodRef(Uid("u-1"), "team-a", "train")
PODS, REQUESTS = (
    "/api/v1/namespaces/team-a/pods/train/status",
    "/apis/lifecycle.k8s.io/v1alpha1/namespaces/team-a/evictionrequests",
)


class Requests:
    """Records requests, and answers with a status."""

    def __init__(self, **refused: int) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.refused = refused

    async def request(self, method: str, path: str, *, body: Any, **_: Any) -> bytes:
        self.sent.append((method, path, body))
        if method in self.refused:
            raise ClusterRefused("refused", self.refused[method])
        return b""


def notifier(requests: Requests) -> PodReclaimNotifier:
    return PodReclaimNotifier(cast("Client", requests), lambda: Millis(1000))


async def test_a_notice_is_an_annotation_and_a_condition_of_this_very_pod() -> None:
    requests = Requests()

    await notifier(requests).give_notice(GiveReclaimNotice(POD, Millis(61_000), "because"))

    [(method, path, body)] = requests.sent
    assert (method, path) == ("PATCH", PODS)
    assert body["metadata"]["uid"] == "u-1"
    ends = "1970-01-01T00:01:01Z"
    assert body["metadata"]["annotations"] == {"fairgate.io/reclaim-at": ends}
    [condition] = body["status"]["conditions"]
    assert condition["status"] == "True"
    assert condition["message"] == f"Fairgate evicts this pod at {ends}: because"


async def test_responders_get_an_eviction_request_if_the_api_exists() -> None:
    requests = Requests(POST=404)  # as an API server without this group answers

    await notifier(requests).give_notice(
        GiveReclaimNotice(POD, Millis(0), "because", has_responders=True)
    )

    method, path, body = requests.sent[1]
    assert (method, path) == ("POST", REQUESTS)
    assert body["spec"]["target"] == {"pod": {"name": "train", "uid": "u-1"}}
    assert body["spec"]["intent"] == "Eviction"
    [owner] = body["metadata"]["ownerReferences"]
    assert owner["uid"] == "u-1"


async def test_a_withdrawal_removes_the_request_and_the_annotation() -> None:
    requests = Requests()

    await notifier(requests).withdraw_notice(WithdrawReclaimNotice(POD, has_responders=True))

    assert requests.sent[0][:2] == ("DELETE", f"{REQUESTS}/fairgate-u-1")
    assert requests.sent[1][2]["metadata"]["annotations"] == {"fairgate.io/reclaim-at": None}


async def test_a_deleted_pod_is_no_error_and_a_missing_right_is() -> None:
    await notifier(Requests(PATCH=404)).give_notice(GiveReclaimNotice(POD, Millis(0), ""))
    with pytest.raises(ClusterRefused):
        await notifier(Requests(PATCH=403)).give_notice(GiveReclaimNotice(POD, Millis(0), ""))
