"""Consumers' rpcs: pops, acknowledgements and pulls.

Start with `receive_message.py`: ReceiveMessage pops messages for a client. `acks.py` has AckMessage,
ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue. `in_flight_messages.py` is the table of in-flight messages,
and `receipt_handle_manager.py` extends their invisible duration for slow consumers. These modules send their requests
to brokers through `pop_requests.py`. `pull_message.py` has PullMessage, for consumers that manage their own queues and
offsets.

A client *settles* a received message when it acknowledges it, changes its invisible duration, or moves it to the
dead-letter queue.
"""
