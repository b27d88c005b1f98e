"""Who used how much, for how long."""
