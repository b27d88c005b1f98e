"""Benchmarks: the cost of Fairgate compared with the same machine without it.

Run by `python -m loadtest`. Results are ratios within one run, because machines differ. The product
does not import this package.
"""
