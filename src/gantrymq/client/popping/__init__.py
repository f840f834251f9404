"""Consumers whose broker shares out the messages: a push consumer in pop mode, and the simple consumer.

Open `simple_consumer.py` first, or `popped_queues.py` for a push consumer's side; `pop_api.py` makes the requests.
"""
