"""A pass: who is released next, what is kept free for whom, and who must go."""
