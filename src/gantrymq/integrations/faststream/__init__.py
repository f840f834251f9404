"""Broker for FastStream: subscribers are PushConsumers, publishers use a Producer. Extra: `gantrymq[faststream]`.

    broker = RocketMQBroker("127.0.0.1:9876")

    @broker.subscriber("orders", group="warehouse")
    @broker.publisher("invoices")
    async def handle(order: Order) -> Invoice: ...

`broker.py` has the public classes. `subscriber.py` runs handlers, `publisher.py` sends, `messages.py` converts between
FastStream and the client, `testing.py` has the broker for tests. FastStream has no public interface for external
brokers. This package therefore uses its `_internal` module of version 0.7, and the extra allows only that version.
"""

from gantrymq.extras import missing

try:
    import faststream  # noqa: F401
except ImportError as e:
    raise missing("faststream", "gantrymq.integrations.faststream", e) from e

from gantrymq.integrations.faststream.broker import RocketMQBroker, RocketMQRouter
from gantrymq.integrations.faststream.messages import RocketMQMessage
from gantrymq.integrations.faststream.testing import TestRocketMQBroker

__all__ = ["RocketMQBroker", "RocketMQMessage", "RocketMQRouter", "TestRocketMQBroker"]
