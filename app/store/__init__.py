"""Redis adapter: the leader's copy of queues and usage, and the audit chain with its sinks.

This package makes no decisions. The API server, not Redis, is the source of truth about pods.
"""
