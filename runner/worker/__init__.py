"""The engine worker: an engine in its own thread, fed by leases, drained into the database.

Four threads with bounded queues between them: the feeder (lease, read, tokenise), the step loop
(no I/O, ever), the writer (commit), and the keeper (heartbeat and control query).
"""
