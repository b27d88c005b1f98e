"""Audit chain: recorded events, format of entries, and verification."""
