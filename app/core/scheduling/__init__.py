"""Scheduling cycle: selection, reservations, reclaim and evictions."""
