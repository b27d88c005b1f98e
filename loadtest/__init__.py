"""The measures: how little Fairgate takes away from what the same box does without it.

Run by `python -m loadtest`. Everything is a ratio inside one run, because boxes differ. Nothing of
the product imports this.
"""
