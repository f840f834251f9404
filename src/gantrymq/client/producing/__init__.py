"""Producers. Read `producer.py` first, then `sender.py`, which retries on other brokers until one stores the message.

Modules without I/O: `publish_info`, `queue_selector`, `latency_fault`, `send_command`.
"""
