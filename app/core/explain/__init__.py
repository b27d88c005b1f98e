"""Status and wait reasons of the engine's state. Read-only."""
