"""The independent observer: a program that follows the API server and judges what Fairgate does.

It shares no code with the product: rules, formulas and formats are written again here, from the
documents, and nothing under this folder may import `app`.
"""
