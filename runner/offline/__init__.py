"""One file, answered with no server to start: a private Postgres, one engine, this process.

It is the same road as a job takes through an installation: the real ingest, leases, results and
closing. Only what carries the rings differs (pipes instead of a broker), and who keeps watch.
"""
