"""A node selector that matches no node."""

from __future__ import annotations

NOWHERE = [{"name": "v", "persistentVolumeClaim": {"claimName": "nowhere"}}]
"""Volumes that keep a released pod unschedulable. Fairgate does not check volumes."""
