"""Redis: the leader's copy of what waits and what is used, and the audit chain with its copies.

Nothing in this room decides anything. Of pods nothing here is the truth: that is the API server.
"""
