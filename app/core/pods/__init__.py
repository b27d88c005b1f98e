"""The managed pods and gangs we know of, and their lives."""
