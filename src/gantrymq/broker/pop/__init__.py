"""POP consumption: the broker selects messages for any member of a group and redelivers unacknowledged ones.

`service.py` is the entry point. It creates the parts and describes their roles.
"""

from __future__ import annotations

from gantrymq.broker.pop.long_polling import PopLongPolling, QueueKey, Waiter
from gantrymq.broker.pop.orderly import OrderlyPops, Outcome
from gantrymq.broker.pop.queues import PopQueues
from gantrymq.broker.pop.service import PopService

__all__ = ["OrderlyPops", "Outcome", "PopLongPolling", "PopQueues", "PopService", "QueueKey", "Waiter"]
