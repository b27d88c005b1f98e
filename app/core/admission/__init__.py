"""Admission rules: permitted requests, and the patches to admitted objects."""
