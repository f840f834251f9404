"""Adapters for task queues and frameworks that Python people know: taskiq, Celery, FastStream.

Each is thin: it says in the library's terms what the clients do already. `held.py` is what those for tasks share: a
message stays with the worker that has it until it is acknowledged, and comes again when the worker dies. Each module
needs the extra of its name; docs/integrations.md shows how they are used.
"""
