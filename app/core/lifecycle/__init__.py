"""Managed pods and gangs, and their lifecycle."""
