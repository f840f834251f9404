"""Background work: repeated jobs and single tasks on an event loop, and threads.

All background work of the package uses these modules. It therefore survives its own errors, logs its failures and
reports its state.

- Start with `repeating`: a job that runs repeatedly. `thread` is the counterpart for work that would block the loop.
- `report` counts the runs and failures of a job. `jobs` collects the reports of a server.
- `tasks` runs work once. `loop_thread` provides an event loop for callers without one.
- `collector` shortens the pauses of Python's garbage collector.
"""
