"""Receiving: messages popped for clients, and what clients say of them afterwards.

Open `receive.py` first: ReceiveMessage. `acks.py` has AckMessage, ChangeInvisibleDuration and
ForwardMessageToDeadLetterQueue, `held.py` the messages whose invisible time the proxy prolongs for slow consumers,
`renewing.py` what does so. All of them reach brokers by `pop_requests.py`. Consumers that have queues and offsets of
their own, PullMessage, are in `pulling.py`.
"""
