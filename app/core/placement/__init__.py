"""Pools, their nodes, and the assignment of pods to nodes."""
