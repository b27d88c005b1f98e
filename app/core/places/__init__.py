"""Pools and their nodes: what fits where."""
