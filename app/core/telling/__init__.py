"""How things stand, and why. Reads only."""
