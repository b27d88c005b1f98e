"""The REST API of role api: one module for each thing people ask about, and `app`, their sum.

Reads come from this replica's own engine, which watches and decides nothing, and from Redis;
writes go to the custom resources as the caller's deed. Whoever asks is checked first, so that a
stranger cannot tell what exists from what does not.
"""
