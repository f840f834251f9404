"""Adapters for Python task queues and frameworks: taskiq, Celery, FastStream.

Each is a thin layer over the clients. `in_flight.py` is shared by the task queues: it hides a message from other
workers until it is acknowledged. If the worker dies, the message is redelivered. Each module needs the extra of its
name. Usage: docs/integrations.md.
"""
