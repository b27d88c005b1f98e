"""msgspec structs of admission reviews."""

from __future__ import annotations

from typing import Generic

import msgspec

from app.k8s_types.objects import T
from app.k8s_types.scheduling import AffinitySpec as AffinitySpec
from app.k8s_types.scheduling import KubeStruct as KubeStruct
from app.k8s_types.scheduling import LabelSelector as LabelSelector
from app.k8s_types.scheduling import NodeAffinity as NodeAffinity
from app.k8s_types.scheduling import NodeTerm as NodeTerm
from app.k8s_types.scheduling import NodeTerms as NodeTerms
from app.k8s_types.scheduling import PodAffinity as PodAffinity
from app.k8s_types.scheduling import PodTerm as PodTerm
from app.k8s_types.scheduling import RequirementSpec as RequirementSpec
from app.k8s_types.scheduling import Spread as Spread
from app.k8s_types.scheduling import TaintSpec as TaintSpec
from app.k8s_types.scheduling import TolerationSpec as TolerationSpec


class UserInfo(KubeStruct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = msgspec.field(default_factory=list)
    extra: dict[str, list[str]] | None = None


class RequestedResource(KubeStruct, frozen=True):
    """The resource of an admission request."""

    group: str = ""
    resource: str = ""


class DeleteOptions(KubeStruct, frozen=True):
    """Options of a request. A deletion or an eviction may have a grace period."""

    grace_period_seconds: int | None = None


class AdmissionRequest(KubeStruct, Generic[T], frozen=True):
    uid: str
    operation: str = ""
    resource: RequestedResource = RequestedResource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    dry_run: bool = False
    options: DeleteOptions | None = None
    object: T | None = None
    old_object: T | None = None


class AdmissionReview(KubeStruct, Generic[T], frozen=True):
    request: AdmissionRequest[T]
    api_version: str = ""
    kind: str = ""
