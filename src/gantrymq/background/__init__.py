"""What runs in the background: jobs on an event loop that are repeated, tasks that are done once, and threads.

Nothing else in the package calls `call_later`, `create_task` or `Thread` for work of its own: so whatever runs survives
its errors, is in the log when it fails, and can be asked how it fares. Open `repeating.py` first; `thread.py` is its
sibling for what must not hold up a loop, `report.py` what both tell about themselves, `jobs.py` all those of a server.
`tasks.py` is for what is done once, `loop_thread.py` an event loop for callers that have none, `collector.py` keeps
Python's own work in the background short.
"""
