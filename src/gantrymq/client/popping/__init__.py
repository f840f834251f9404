"""Consumers that pop: the broker distributes messages instead of queues.

These are push consumers in POP mode, and SimpleConsumer. Read `simple_consumer.py` first, or `popped_queues.py` for
push consumers. `pop_api.py` makes the requests.
"""
