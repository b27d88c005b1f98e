"""Redis: the leader's copy of what waits and what is used, for every replica to read.

Nothing in this room decides anything, and nothing here is the truth: that is the API server.
"""
