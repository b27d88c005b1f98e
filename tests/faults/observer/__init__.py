"""The independent observer: a program that follows the API server and checks Fairgate's behaviour.

It shares no code with the product. Rules, formulas and formats are implemented again from the
documentation, and modules in this folder must not import `app`.
"""
