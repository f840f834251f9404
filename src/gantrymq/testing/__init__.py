"""Clusters on this machine, for tests, for experiments and for `gantry up`.

`embedded` runs a cluster in the calling process and starts in a fraction of a second; read it first. `processes` runs
each server in its own process, as in production. `plugin` has the pytest fixture. All use real sockets and files.
"""
