"""Transactional messages of the broker.

- A transactional send stores a *half message*, which consumers do not see.
- The producer then commits it or rolls it back: the transaction has *ended*. An *op message* lists ended half messages.
- Until then the transaction is *open*. The broker *checks* it by requesting its state from the producer group.
- After too many checks, the broker *gives up* the transaction and moves the half message to TRANS_CHECK_MAX_TIME_TOPIC.
- A *decision* ends many half messages at once. Spark uses it.
"""

from __future__ import annotations

from gantrymq.broker.transaction.half_batches import HalfBatches
from gantrymq.broker.transaction.half_messages import destination, half_properties, half_queue
from gantrymq.broker.transaction.transactions import Transactions

__all__ = ["HalfBatches", "Transactions", "destination", "half_properties", "half_queue"]
