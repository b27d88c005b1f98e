"""Weights and usage of tenants and users, and the order of their queues."""
