"""Consumers that pull: push and lite pull. Open `push_consumer.py` first.

A consumer's queues are in `assigned_queues.py`, one queue's pulls in `queue_puller.py`, who gets which queue in
`rebalancer.py`. Handlers run in `handler_pool.py`, told by `concurrently.py` or `orderly.py` what comes next. Plain
classes, told all they know: `rebalance`, `process_queue`.
"""
