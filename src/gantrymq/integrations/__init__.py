"""Adapters for Python task queues and frameworks: taskiq, Celery, FastStream.

Each adapter is a thin layer over the clients. `in_flight.py`, which the task queues share, hides a message from other
workers until the message is acknowledged. If the worker dies, the message is redelivered. Each module needs the extra
of its name. Usage: docs/integrations.md.
"""
