"""The GPU product of a node, from its labels and instance type. Only for `fairgate nodes`.

Names are those of NVIDIA's feature discovery if known, otherwise those of the source. Sources:
labels of GKE, EKS, AKS and Karpenter; names of their instance types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.podspec.device_fractions import LABEL_PRODUCT

VENDORS: Mapping[str, str] = {
    "nvidia.com": LABEL_PRODUCT,
    "amd.com": "amd.com/gpu.product-name",
    "gpu.intel.com": "gpu.intel.com/product",
}
"""The product label, by domain of the resource."""

CLOUD_LABELS = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "accelerator",
)
INSTANCE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

_WORDS = frozenset({"", "nvidia", "amd", "gpu", "true", "yes", "present"})
"""Label values that state the presence of devices, but no product."""

_NAMES = {
    "nvidia-tesla-k80": "Tesla-K80",
    "nvidia-tesla-p4": "Tesla-P4",
    "nvidia-tesla-p100": "Tesla-P100-PCIE-16GB",
    "nvidia-tesla-v100": "Tesla-V100-SXM2-16GB",
    "nvidia-tesla-t4": "Tesla-T4",
    "nvidia-tesla-a100": "NVIDIA-A100-SXM4-40GB",
    "nvidia-a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "nvidia-h100-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h100-mega-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h200-141gb": "NVIDIA-H200",
    "nvidia-l4": "NVIDIA-L4",
    "t4": "Tesla-T4",
    "l4": "NVIDIA-L4",
    "l40s": "NVIDIA-L40S",
    "a10g": "NVIDIA-A10G",
}

_INSTANCES = (
    (r"g4dn\..*|Standard_NC\d+as_T4_v3", "Tesla-T4"),
    (r"g5\..*", "NVIDIA-A10G"),
    (r"g6\..*|g2-standard-\d+", "NVIDIA-L4"),
    (r"g6e\..*", "NVIDIA-L40S"),
    (r"p3\..*", "Tesla-V100-SXM2-16GB"),
    (r"p3dn\..*", "Tesla-V100-SXM2-32GB"),
    (r"p4d\..*|a2-(highgpu|megagpu)-.*|Standard_ND96asr_v4", "NVIDIA-A100-SXM4-40GB"),
    (r"p4de\..*|a2-ultragpu-.*|Standard_ND96amsr_A100_v4", "NVIDIA-A100-SXM4-80GB"),
    (r"Standard_NC\d+ads_A100_v4", "NVIDIA-A100-80GB-PCIe"),
    (r"p5\..*|a3-(highgpu|megagpu)-.*|Standard_ND96isr_H100_v5", "NVIDIA-H100-80GB-HBM3"),
    (r"p5en?\..*|a3-ultragpu-.*|Standard_ND96isr_H200_v5", "NVIDIA-H200"),
)
_KNOWN_INSTANCES = tuple((re.compile(pattern, re.ASCII), name) for pattern, name in _INSTANCES)
_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Product:
    """A product, and the source of its name."""

    name: str
    source: str


def label_of(resource: str) -> str:
    """Return the label that names the product of a resource."""
    domain = resource.partition("/")[0]
    return VENDORS.get(domain, f"{domain}/gpu.product")


def is_value(text: str) -> bool:
    """Return whether a text is a valid, non-empty label value."""
    return _VALUE.fullmatch(text) is not None


def guess(labels: Mapping[str, str], plugin: str = "") -> Product | None:
    """Return the product of a node from its own data. None if unknown.

    `plugin`: the product that the device plugin noted. It takes precedence over cloud labels.
    """
    noted = re.sub(r"[^A-Za-z0-9_.-]+", "-", plugin.removeprefix("NVIDIA-")).strip("-")
    if is_value(noted):
        return Product(noted, "the device plugin's annotation")
    for key in CLOUD_LABELS:
        value = labels.get(key, "")
        if value.lower() not in _WORDS and is_value(value):
            return Product(_NAMES.get(value.lower(), value), f"label {key}={value}")
    for key in INSTANCE_LABELS:
        value = labels.get(key, "")
        for pattern, name in _KNOWN_INSTANCES:
            if pattern.fullmatch(value):
                return Product(name, f"label {key}={value}")
    return None
