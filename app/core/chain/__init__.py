"""The audit chain: what it is told, and whether it holds."""
