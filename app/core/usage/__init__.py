"""Usage records, fairness checkpoints and store sync."""
