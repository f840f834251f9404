"""A broker for FastStream: subscribers are PushConsumers, publishers a Producer. The extra `gantrymq[faststream]`.

    broker = RocketMQBroker("127.0.0.1:9876")

    @broker.subscriber("orders", group="warehouse")
    @broker.publisher("invoices")
    async def handle(order: Order) -> Invoice: ...

`broker.py` is what users make; `subscriber.py` runs handlers, `publisher.py` sends, `messages.py` has what goes between
FastStream and the client, `testing.py` the broker for tests. FastStream has no public interface for brokers of others:
this is built on its `_internal` as of 0.7, like its own brokers, and the extra allows that version only.
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
