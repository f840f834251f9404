"""RocketMQ in Python: NameServer, broker, clients, administration and a Spark data source.

The names a user needs are here; each module is imported when its first name is used, so that a broker that starts
doesn't wait for the client, nor the client for the servers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gantrymq.client.broker_api import SendResult, SendStatus
    from gantrymq.client.lite_pull_consumer import LitePullConsumer
    from gantrymq.client.process_queue import FlowLimits
    from gantrymq.client.producer import Producer
    from gantrymq.client.push_consumer import PushConsumer
    from gantrymq.client.queue_selector import select_by_hash, select_randomly
    from gantrymq.protocol.compression import CompressionType
    from gantrymq.protocol.heartbeat import (
        CONSUME_FROM_FIRST_OFFSET,
        CONSUME_FROM_LAST_OFFSET,
        CONSUME_FROM_TIMESTAMP,
    )
    from gantrymq.protocol.message import Message, MessageExt, MessageQueue
    from gantrymq.sync import SyncLitePullConsumer, SyncProducer, SyncPushConsumer

_MODULES = {
    "CONSUME_FROM_FIRST_OFFSET": "gantrymq.protocol.heartbeat",
    "CONSUME_FROM_LAST_OFFSET": "gantrymq.protocol.heartbeat",
    "CONSUME_FROM_TIMESTAMP": "gantrymq.protocol.heartbeat",
    "CompressionType": "gantrymq.protocol.compression",
    "FlowLimits": "gantrymq.client.process_queue",
    "LitePullConsumer": "gantrymq.client.lite_pull_consumer",
    "Message": "gantrymq.protocol.message",
    "MessageExt": "gantrymq.protocol.message",
    "MessageQueue": "gantrymq.protocol.message",
    "Producer": "gantrymq.client.producer",
    "PushConsumer": "gantrymq.client.push_consumer",
    "SendResult": "gantrymq.client.broker_api",
    "SendStatus": "gantrymq.client.broker_api",
    "SyncLitePullConsumer": "gantrymq.sync",
    "SyncProducer": "gantrymq.sync",
    "SyncPushConsumer": "gantrymq.sync",
    "select_by_hash": "gantrymq.client.queue_selector",
    "select_randomly": "gantrymq.client.queue_selector",
}

__all__ = [
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
    "CompressionType",
    "FlowLimits",
    "LitePullConsumer",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Producer",
    "PushConsumer",
    "SendResult",
    "SendStatus",
    "SyncLitePullConsumer",
    "SyncProducer",
    "SyncPushConsumer",
    "select_by_hash",
    "select_randomly",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # importlib.metadata takes longer to import than the whole broker's own modules.
        from importlib.metadata import version

        return version("gantrymq")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'gantrymq' has no attribute {name!r}")
