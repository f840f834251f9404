"""Diagnosis of a proxy from a client's point of view: the library behind `gantry doctor --proxy`.

Start with `diagnosis.py`, which derives findings from observations. `observation.py` makes a few calls and records the
results. `proxy_client.py` is the gRPC client for these calls. Its requests have the same form as those of Apache's
clients.
"""
