"""Consumers that pop: the broker distributes messages instead of queues.

The consumers are SimpleConsumer and push consumers in POP mode, and those of lite topics. Read `simple_consumer.py`
first, `popped_queues.py` for push consumers, or `lite_consumer.py`. `pop_api.py` makes the requests.
"""
