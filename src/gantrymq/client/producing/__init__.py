"""Producers. Open `producer.py` first, then `sender.py`, which tries brokers until one has the message.

Plain classes and functions, told all they know: `publish_info`, `queue_selector`, `latency_fault`, `send_command`.
"""
