"""Whole clusters on this machine, for tests, for trying things out and for `gantry up`.

`embedded` runs one in the calling process (for tests: up in a fraction of a second), `processes` runs a process per
server, as in production. `plugin` is the pytest fixture. All use real sockets and real files.
Open `embedded.py` first.
"""
