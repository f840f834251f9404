"""Deterministic simulation of a whole cluster in one process, on simulated time, network and disks.

The same seed gives the same run, byte by byte. The cluster runs the package's own code without changes. `loop` is an
asyncio event loop whose time jumps to the next event. `machine` has hosts and processes, `network` the connections and
`disk` the files.
"""
