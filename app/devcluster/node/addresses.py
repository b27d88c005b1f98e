"""Addresses of the node, in 198.18.0.0/15, which is reserved for tests inside one network."""

from __future__ import annotations

NODE_NAME = "node"
HOST = "198.18.0.1"
"""The address of this machine for the node and its pods: here the API server listens."""

NODE = "198.18.0.2"
LINK_BITS = 30
PODS = "198.18.1.0/24"
SERVICES = "198.19.0.0/16"
DEVICE = "fairgate0"
"""The network device of this machine that leads to the node."""

UPLINK = "uplink"
"""The other end of `DEVICE`, in the node."""

DNS_DOMAIN = "cluster.local"
