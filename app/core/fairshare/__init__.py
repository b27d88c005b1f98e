"""Fair share: the entitled share and the usage of tenants and users, and the order of queues."""
