"""What a pod asks for, as its owner wrote it."""
