"""The HTTP headers that a worker gives a meaning to.

A request with `PROBE` is answered by a worker, which signs with `WORKER` as it signs every answer, but it
asks nothing and is counted nowhere. It serves as a health check, and shows that a worker has answered all
that came before.

An answer with `UNREADABLE` says that a part of the graph cannot be read now, which is no fault of the version
that says so: it answers all that does not need this part.
"""

PROBE = "x-hopserve-probe"
WORKER = "x-hopserve-worker"
UNREADABLE = "x-hopserve-unreadable"
