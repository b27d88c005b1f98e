"""`kubectl-fairgate`: a client of the REST API that acts with the user's own identity.

`arguments` has the arguments, `client` the HTTP client, `output` and `tables` the output. The
plugin uses only the JSON of the API. It imports `app.terminal` and a few modules of `app.core`,
so that it starts quickly.
"""
