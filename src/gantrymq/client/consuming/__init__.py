"""Consumers that pull: push and lite pull. Read `push_consumer.py` first.

`rebalancer.py` assigns queues to this consumer and `assigned_queues.py` manages them. `queue_puller.py` pulls one
queue. Handlers run in `handler_pool.py`; `concurrently.py` or `orderly.py` schedules the messages. `rebalance` and
`process_queue` contain no I/O.

A `ConsumerContext` (`consumer_context.py`) has the objects that the parts of a consumer share.
"""
