"""Names in the paths of the REST API, with the examples that its document shows."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

TenantPath = Annotated[str, Path(description="Name of a tenant.", examples=["team-a"])]
UserPath = Annotated[
    str, Path(description="Name of a user; slashes may stay.", examples=["alice@example.com"])
]
PoolPath = Annotated[str, Path(description="Name of a pool.", examples=["h100"])]
NamespacePath = Annotated[str, Path(description="Namespace of the pod.", examples=["team-a"])]
PodPath = Annotated[str, Path(description="Name of the pod.", examples=["train-0"])]
