"""An in-memory API server with the requests that a release by hand sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from app.core.errors import ClusterRefused, ClusterUnavailable
from tests.support.json_patch import PatchFailed, apply

PODS = "/api/v1/pods"
POLICY = "/apis/fairgate.io/v1alpha1/policies/default"
CLAIMS = "/apis/resource.k8s.io/v1/"
Object = dict[str, Any]


def held(name: str, *others: str, annotated: bool = True) -> Object:
    """Return a held pod of namespace `space`. `others` are gates before Fairgate's."""
    meta = {"name": name, "namespace": "space", "uid": f"uid-{name}"}
    notes: Object = {"annotations": {"fairgate.io/release": "0"}} if annotated else {}
    gates = [{"name": gate} for gate in (*others, "fairgate.io/queue")]
    return {"metadata": meta | notes, "spec": {"schedulingGates": gates}}


@dataclass
class FakeApiServer:
    """`request` of `kube.client.Client`. `before_patch` may change a pod or raise."""

    pods: dict[str, Object] = field(default_factory=dict)
    allowed: tuple[str, ...] = ("", "space")
    """Namespaces in which the caller may release pods; "" means all namespaces."""
    policy: Object | None = None
    installed: bool = True
    may_change_policy: bool = True
    may_write_events: bool = True
    claims: dict[str, Object] | None = field(default_factory=dict)
    """None if the server does not serve this kind."""
    may_change_claims: bool = True
    events: list[Object] = field(default_factory=list)
    patches: list[str] = field(default_factory=list)
    before_patch: Callable[[str], None] = lambda name: None
    before_list: Callable[[], None] = lambda: None
    deaf: int = 0
    """Number of patches that take effect but get no reply."""

    def add(self, *pods: Object) -> None:
        """Store pods."""
        self.pods |= {pod["metadata"]["name"]: pod for pod in pods}

    def gates(self, name: str) -> list[str]:
        """Return the remaining gates of a pod."""
        return [gate["name"] for gate in self.pods[name]["spec"]["schedulingGates"]]

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Iterable[tuple[str, str]] = (),
        body: Any = None,
        **_: object,
    ) -> bytes:
        return json.dumps(self._answer(method, path, dict(query), body)).encode()

    def _answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Object:
        if path.endswith("selfsubjectreviews"):
            return {"status": {"userInfo": {"username": "olga"}}}
        if path.endswith("selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            right = (asked["group"], asked["resource"], asked["verb"])
            known = right == ("fairgate.io", "podgates", "release")
            return {"status": {"allowed": known and asked["namespace"] in self.allowed}}
        if path.endswith("/events"):
            if not self.may_write_events:
                raise ClusterRefused("events is forbidden", 403)
            event: Object = body
            self.events.append(event)
            return event
        if "/policies" in path:
            return self._policy(method, body)
        if path == PODS:
            return self._page(query)
        if path.startswith(CLAIMS):
            return self._claims(method, path, body)
        return self._pod(method, path.rpartition("/")[2], body)

    def _policy(self, method: str, body: Any) -> Object:
        if not self.may_change_policy:
            raise ClusterRefused("policies is forbidden", 403)
        if not self.installed or (method == "PATCH" and self.policy is None):
            raise ClusterRefused("not found", 404)
        spec = (self.policy or {"spec": {}})["spec"] | body["spec"]
        self.policy = {"spec": spec}
        return self.policy

    def _claims(self, method: str, path: str, body: Any) -> Object:
        if not self.may_change_claims:
            raise ClusterRefused("resourceclaims is forbidden", 403)
        if self.claims is None:
            raise ClusterRefused("not found", 404)
        if path.endswith("/resourceclaims"):
            return {"metadata": {}, "items": list(self.claims.values())}
        name = path.rpartition("/")[2]
        if name not in self.claims:
            raise ClusterRefused(f'resourceclaims "{name}" not found', 404)
        meta = self.claims[name]["metadata"]
        if method == "GET":
            return self.claims[name]
        assert body["metadata"]["uid"] == meta["uid"]
        meta["finalizers"] += body["metadata"].get("finalizers", [])
        removed = body["metadata"].get("$deleteFromPrimitiveList/finalizers", [])
        meta["finalizers"] = [each for each in meta["finalizers"] if each not in removed]
        return self.claims[name]

    def _page(self, query: dict[str, str]) -> Object:
        assert query["fieldSelector"] == "spec.nodeName="
        start, size = int(query.get("continue", "0")), 2
        if not start:
            self.before_list()
        pods = list(self.pods.values())[start : start + size]
        more = str(start + size) if start + size < len(self.pods) else ""
        return {"metadata": {"continue": more}, "items": pods}

    def _pod(self, method: str, name: str, body: Any) -> Object:
        if method == "PATCH":
            self.patches.append(name)
            self.before_patch(name)
        if name not in self.pods:
            raise ClusterRefused(f'pods "{name}" not found', 404)
        if method == "PATCH":
            try:
                self.pods[name] = apply(self.pods[name], body)
            except PatchFailed as error:
                raise ClusterRefused(str(error), 422) from error
            if self.deaf:
                self.deaf -= 1
                raise ClusterUnavailable("no answer")
        return dict(self.pods[name])
