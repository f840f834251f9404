"""A whole cluster in one process, on simulated time, network and disk: the same seed gives the same run, to the byte.

`loop` is an asyncio event loop whose time jumps to what comes next, `machine` has hosts and their processes, `network`
the connections between them, `disk` their files. What runs on it is the package's own code, unchanged.
"""
