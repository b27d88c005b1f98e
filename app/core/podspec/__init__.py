"""Parsed spec, labels and annotations of a pod."""
