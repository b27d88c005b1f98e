"""The REST API of role api: one module for each resource, and `app`, which assembles them.

Reads use the replica's own read-only engine, and Redis. Writes change the custom resources and
record the caller. Every route authenticates and authorizes first, so that an unauthorized caller
cannot find out which objects exist.
"""
