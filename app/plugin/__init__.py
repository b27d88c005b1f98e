"""`kubectl-fairgate`: what the REST API tells and takes, in a terminal, as the person who calls.

`command` has the arguments, `door` the way to the API, `show` and `tables` what is printed. It
knows the API by its JSON only and imports nothing of the server but its tree of errors, so
that it starts quickly.
"""
