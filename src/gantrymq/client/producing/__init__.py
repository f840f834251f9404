"""Producers. Read `producer.py` first, then `sender.py`, which retries on other brokers until one stores the message.
`direct_sends.py` is the shortcut for the first attempt of most sends, `blocking_sends.py` for those of `SyncProducer`.

Modules without I/O: `publish_info`, `queue_selector`, `latency_fault`, `send_command`.
"""
