"""Keys and values of labels and annotations, and the scheduling gate.

The list of `fairgate.io/` annotations that users may write is here, too.
"""

from __future__ import annotations

GATE = "fairgate.io/queue"
LABEL_TENANT = "fairgate.io/tenant"
LABEL_POOL = "fairgate.io/pool"
LABEL_USER = "fairgate.io/user"
ANNOTATION_SUBMITTER = "fairgate.io/submitter"
ANNOTATION_RELEASE = "fairgate.io/release"
ANNOTATION_POOLS = "fairgate.io/pools"
ANNOTATION_PREEMPTIBLE = "fairgate.io/preemptible"
ANNOTATION_MAX_RUNTIME = "fairgate.io/max-runtime"
ANNOTATION_GPU_MEMORY = "fairgate.io/gpu-memory"
ANNOTATION_MODEL_SIZE = "fairgate.io/model-size"
ANNOTATION_CHANGED_BY = "fairgate.io/changed-by"
ANNOTATION_CHANGED = "fairgate.io/changed"
ANNOTATION_GANG = "fairgate.io/gang"
ANNOTATION_GANG_SIZE = "fairgate.io/gang-size"
ANNOTATION_GANG_MIN = "fairgate.io/gang-min"
ANNOTATION_PLACEMENT = "fairgate.io/placement"
ANNOTATION_TOPOLOGY = "fairgate.io/topology"
ANNOTATION_RECLAIM_NOTICE = "fairgate.io/reclaim-notice"
ANNOTATION_RECLAIM_AT = "fairgate.io/reclaim-at"
ANNOTATION_CHECKPOINT_INTERVAL = "fairgate.io/checkpoint-interval"
ANNOTATION_GANG_FAILURE = "fairgate.io/gang-failure"
ANNOTATION_CLAIMS = "fairgate.io/claims"
ANNOTATION_MIRROR = "kubernetes.io/config.mirror"

RELEASE_HELD = "0"
"""Value of the release annotation that the webhook writes."""

RELEASE_ADOPTED = "adopted"
"""Value of the release annotation on adopted pods: they were running before the installation."""

KEY_PREFIX = "fairgate.io/"

CREATE_ONLY_KEYS = frozenset(
    KEY_PREFIX + key for key in ("gang", "gang-size", "gang-min", "gang-failure")
)
"""Annotations that are read once, when the pod is created."""

USER_KEYS = CREATE_ONLY_KEYS | frozenset(
    KEY_PREFIX + key
    for key in (
        "placement",
        "topology",
        "gpu-memory",
        "model-size",
        "max-runtime",
        "preemptible",
        "pools",
        "reclaim-notice",
        "checkpoint-interval",
    )
)
"""Annotations that users may write. Those that are not frozen may change until the release."""

WRITTEN_KEYS = frozenset(
    (
        LABEL_TENANT,
        LABEL_POOL,
        LABEL_USER,
        ANNOTATION_SUBMITTER,
        ANNOTATION_RELEASE,
        ANNOTATION_CHANGED_BY,
        ANNOTATION_CHANGED,
        ANNOTATION_RECLAIM_AT,
        ANNOTATION_CLAIMS,
    )
)
"""Labels and annotations that only Fairgate writes."""
