"""Producers' rpcs: SendMessage, EndTransaction, RecallMessage.

Start with `processor.py`, which forwards requests to brokers. `message_encoder.py` checks messages and encodes their
properties. `message_queue_selector.py` selects the queue. `transactions.py` caches the positions of half messages until
commit or rollback.
"""
