"""What may be created and changed, by whom, and what is done to it on the way in."""
