"""RocketMQ in Python: NameServer, broker, clients, administration and a Spark data source.

The names a user needs are here; each module is imported when its first name is used, so that a broker that starts
doesn't wait for the client, nor the client for the servers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gantrymq.client.acl_hook import AclHook
    from gantrymq.client.broker_api import SendResult, SendStatus
    from gantrymq.client.consume_hooks import ConsumeContext, ConsumeHook, ConsumeReturnType
    from gantrymq.client.lite_pull_consumer import LitePullConsumer
    from gantrymq.client.pop_queues import PopOptions
    from gantrymq.client.process_queue import FlowLimits
    from gantrymq.client.producer import Producer
    from gantrymq.client.push_consumer import PushConsumer
    from gantrymq.client.queue_selector import select_by_hash, select_by_machine_room, select_randomly
    from gantrymq.client.rebalance import (
        allocate_averagely,
        allocate_by_circle,
        allocate_by_config,
        allocate_by_consistent_hash,
        allocate_by_machine_room,
        allocate_machine_room_nearby,
    )
    from gantrymq.client.request_reply import reply_message
    from gantrymq.client.send_hook import SendContext
    from gantrymq.client.simple_consumer import SimpleConsumer
    from gantrymq.client.transaction_producer import (
        LocalTransactionState,
        TransactionListener,
        TransactionProducer,
        TransactionSendResult,
    )
    from gantrymq.protocol.compression import CompressionType
    from gantrymq.protocol.heartbeat import CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_TIMESTAMP
    from gantrymq.protocol.message import Message, MessageExt, MessageQueue
    from gantrymq.sync import (
        SyncLitePullConsumer,
        SyncProducer,
        SyncPushConsumer,
        SyncSimpleConsumer,
        SyncTransactionProducer,
    )

_MODULES = {
    "CONSUME_FROM_FIRST_OFFSET": "gantrymq.protocol.heartbeat",
    "CONSUME_FROM_LAST_OFFSET": "gantrymq.protocol.heartbeat",
    "CONSUME_FROM_TIMESTAMP": "gantrymq.protocol.heartbeat",
    "AclHook": "gantrymq.client.acl_hook",
    "CompressionType": "gantrymq.protocol.compression",
    "ConsumeContext": "gantrymq.client.consume_hooks",
    "ConsumeHook": "gantrymq.client.consume_hooks",
    "ConsumeReturnType": "gantrymq.client.consume_hooks",
    "FlowLimits": "gantrymq.client.process_queue",
    "LitePullConsumer": "gantrymq.client.lite_pull_consumer",
    "LocalTransactionState": "gantrymq.client.transaction_producer",
    "Message": "gantrymq.protocol.message",
    "MessageExt": "gantrymq.protocol.message",
    "MessageQueue": "gantrymq.protocol.message",
    "PopOptions": "gantrymq.client.pop_queues",
    "Producer": "gantrymq.client.producer",
    "PushConsumer": "gantrymq.client.push_consumer",
    "SendContext": "gantrymq.client.send_hook",
    "SendResult": "gantrymq.client.broker_api",
    "SendStatus": "gantrymq.client.broker_api",
    "SimpleConsumer": "gantrymq.client.simple_consumer",
    "SyncLitePullConsumer": "gantrymq.sync",
    "SyncProducer": "gantrymq.sync",
    "SyncPushConsumer": "gantrymq.sync",
    "SyncSimpleConsumer": "gantrymq.sync",
    "SyncTransactionProducer": "gantrymq.sync",
    "TransactionListener": "gantrymq.client.transaction_producer",
    "TransactionProducer": "gantrymq.client.transaction_producer",
    "TransactionSendResult": "gantrymq.client.transaction_producer",
    "allocate_averagely": "gantrymq.client.rebalance",
    "allocate_by_circle": "gantrymq.client.rebalance",
    "allocate_by_config": "gantrymq.client.rebalance",
    "allocate_by_consistent_hash": "gantrymq.client.rebalance",
    "allocate_by_machine_room": "gantrymq.client.rebalance",
    "allocate_machine_room_nearby": "gantrymq.client.rebalance",
    "reply_message": "gantrymq.client.request_reply",
    "select_by_hash": "gantrymq.client.queue_selector",
    "select_by_machine_room": "gantrymq.client.queue_selector",
    "select_randomly": "gantrymq.client.queue_selector",
}

__all__ = [
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
    "AclHook",
    "CompressionType",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumeReturnType",
    "FlowLimits",
    "LitePullConsumer",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageQueue",
    "PopOptions",
    "Producer",
    "PushConsumer",
    "SendContext",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SyncLitePullConsumer",
    "SyncProducer",
    "SyncPushConsumer",
    "SyncSimpleConsumer",
    "SyncTransactionProducer",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "allocate_averagely",
    "allocate_by_circle",
    "allocate_by_config",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
    "allocate_machine_room_nearby",
    "reply_message",
    "select_by_hash",
    "select_by_machine_room",
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
