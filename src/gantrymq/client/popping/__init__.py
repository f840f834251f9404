"""Consumers that pop: the broker distributes messages instead of queues.

The consumers are SimpleConsumer and push consumers in POP mode. Read `simple_consumer.py` first, or `popped_queues.py`
for push consumers. `pop_api.py` makes the requests.
"""
