"""RocketMQ in Python: NameServer, broker, clients, administration and a Spark data source.

This package exports the public names of the clients, and all errors. A module is imported when one of its names is
first used. Therefore a broker starts without importing the client, and a client without importing the servers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gantrymq.client.admin.client import AdminClient
    from gantrymq.client.broker_api import SendResult, SendStatus
    from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
    from gantrymq.client.consuming.process_queue import FlowLimits
    from gantrymq.client.consuming.push_consumer import PushConsumer
    from gantrymq.client.consuming.rebalance import (
        allocate_averagely,
        allocate_by_circle,
        allocate_by_config,
        allocate_by_consistent_hash,
        allocate_by_machine_room,
        allocate_machine_room_nearby,
    )
    from gantrymq.client.credentials import Credentials
    from gantrymq.client.key_value import KeyValue, KeyValueEntry
    from gantrymq.client.middleware import ConsumeContext, Middleware, ReceiveContext, SendContext
    from gantrymq.client.popping.lite_push_consumer import LitePushConsumer
    from gantrymq.client.popping.lite_simple_consumer import LiteSimpleConsumer
    from gantrymq.client.popping.popped_queues import PopOptions
    from gantrymq.client.popping.simple_consumer import SimpleConsumer
    from gantrymq.client.producing.producer import Producer
    from gantrymq.client.producing.queue_selector import select_by_hash, select_by_machine_room, select_randomly
    from gantrymq.client.producing.request_reply import reply_message
    from gantrymq.client.producing.transaction_producer import (
        LocalTransactionState,
        TransactionListener,
        TransactionProducer,
        TransactionSendResult,
    )
    from gantrymq.errors import (
        BodyError,
        BrokerError,
        BrokerUnavailable,
        ClientClosed,
        ClientError,
        CodecError,
        CompressionError,
        ConfigError,
        ConnectFailed,
        ConnectionLost,
        DataLost,
        FrameError,
        GantryError,
        HeaderError,
        IllegalMessage,
        LiteSubscriptionQuotaExceeded,
        LiteTopicQuotaExceeded,
        MissingExtra,
        NoRouteInfo,
        PartialFailure,
        ProtocolError,
        RecordError,
        RefusalReason,
        RemotingError,
        ReplicationError,
        RequestRefused,
        RequestTimeout,
        RouteNotReady,
        SendOutcomeUnknown,
        StoreBusy,
        StoreError,
        StoreFull,
        StoreLocked,
        SyncFailed,
        ThreadDied,
    )
    from gantrymq.protocol.bodies.heartbeat import (
        CONSUME_FROM_LAST_OFFSET,
    )
    from gantrymq.protocol.bodies.lite import OffsetOption
    from gantrymq.protocol.compression import CompressionType
    from gantrymq.protocol.message import Message, MessageExt, MessageQueue, Tombstone
    from gantrymq.service import run
    from gantrymq.sync import (
        SyncLitePullConsumer,
        SyncLitePushConsumer,
        SyncLiteSimpleConsumer,
        SyncProducer,
        SyncPushConsumer,
        SyncSimpleConsumer,
        SyncTransactionProducer,
    )

_MODULES = {
    "CONSUME_FROM_LAST_OFFSET": "gantrymq.protocol.bodies.heartbeat",
    "AdminClient": "gantrymq.client.admin.client",
    "BodyError": "gantrymq.errors",
    "BrokerError": "gantrymq.errors",
    "BrokerUnavailable": "gantrymq.errors",
    "ClientClosed": "gantrymq.errors",
    "ClientError": "gantrymq.errors",
    "CodecError": "gantrymq.errors",
    "CompressionError": "gantrymq.errors",
    "CompressionType": "gantrymq.protocol.compression",
    "ConfigError": "gantrymq.errors",
    "ConnectFailed": "gantrymq.errors",
    "ConnectionLost": "gantrymq.errors",
    "ConsumeContext": "gantrymq.client.middleware",
    "Credentials": "gantrymq.client.credentials",
    "DataLost": "gantrymq.errors",
    "FlowLimits": "gantrymq.client.consuming.process_queue",
    "FrameError": "gantrymq.errors",
    "GantryError": "gantrymq.errors",
    "HeaderError": "gantrymq.errors",
    "IllegalMessage": "gantrymq.errors",
    "KeyValue": "gantrymq.client.key_value",
    "KeyValueEntry": "gantrymq.client.key_value",
    "LitePullConsumer": "gantrymq.client.consuming.lite_pull_consumer",
    "LitePushConsumer": "gantrymq.client.popping.lite_push_consumer",
    "LiteSimpleConsumer": "gantrymq.client.popping.lite_simple_consumer",
    "LiteSubscriptionQuotaExceeded": "gantrymq.errors",
    "LiteTopicQuotaExceeded": "gantrymq.errors",
    "LocalTransactionState": "gantrymq.client.producing.transaction_producer",
    "Message": "gantrymq.protocol.message",
    "MessageExt": "gantrymq.protocol.message",
    "MessageQueue": "gantrymq.protocol.message",
    "Middleware": "gantrymq.client.middleware",
    "MissingExtra": "gantrymq.errors",
    "NoRouteInfo": "gantrymq.errors",
    "OffsetOption": "gantrymq.protocol.bodies.lite",
    "PartialFailure": "gantrymq.errors",
    "PopOptions": "gantrymq.client.popping.popped_queues",
    "Producer": "gantrymq.client.producing.producer",
    "ProtocolError": "gantrymq.errors",
    "PushConsumer": "gantrymq.client.consuming.push_consumer",
    "ReceiveContext": "gantrymq.client.middleware",
    "RecordError": "gantrymq.errors",
    "RefusalReason": "gantrymq.errors",
    "RemotingError": "gantrymq.errors",
    "ReplicationError": "gantrymq.errors",
    "RequestRefused": "gantrymq.errors",
    "RequestTimeout": "gantrymq.errors",
    "RouteNotReady": "gantrymq.errors",
    "SendContext": "gantrymq.client.middleware",
    "SendOutcomeUnknown": "gantrymq.errors",
    "SendResult": "gantrymq.client.broker_api",
    "SendStatus": "gantrymq.client.broker_api",
    "SimpleConsumer": "gantrymq.client.popping.simple_consumer",
    "StoreBusy": "gantrymq.errors",
    "StoreError": "gantrymq.errors",
    "StoreFull": "gantrymq.errors",
    "StoreLocked": "gantrymq.errors",
    "SyncFailed": "gantrymq.errors",
    "SyncLitePullConsumer": "gantrymq.sync",
    "SyncLitePushConsumer": "gantrymq.sync",
    "SyncLiteSimpleConsumer": "gantrymq.sync",
    "SyncProducer": "gantrymq.sync",
    "SyncPushConsumer": "gantrymq.sync",
    "SyncSimpleConsumer": "gantrymq.sync",
    "SyncTransactionProducer": "gantrymq.sync",
    "ThreadDied": "gantrymq.errors",
    "Tombstone": "gantrymq.protocol.message",
    "TransactionListener": "gantrymq.client.producing.transaction_producer",
    "TransactionProducer": "gantrymq.client.producing.transaction_producer",
    "TransactionSendResult": "gantrymq.client.producing.transaction_producer",
    "allocate_averagely": "gantrymq.client.consuming.rebalance",
    "allocate_by_circle": "gantrymq.client.consuming.rebalance",
    "allocate_by_config": "gantrymq.client.consuming.rebalance",
    "allocate_by_consistent_hash": "gantrymq.client.consuming.rebalance",
    "allocate_by_machine_room": "gantrymq.client.consuming.rebalance",
    "allocate_machine_room_nearby": "gantrymq.client.consuming.rebalance",
    "reply_message": "gantrymq.client.producing.request_reply",
    "run": "gantrymq.service",
    "select_by_hash": "gantrymq.client.producing.queue_selector",
    "select_by_machine_room": "gantrymq.client.producing.queue_selector",
    "select_randomly": "gantrymq.client.producing.queue_selector",
}

__all__ = [
    "CONSUME_FROM_LAST_OFFSET",
    "AdminClient",
    "BodyError",
    "BrokerError",
    "BrokerUnavailable",
    "ClientClosed",
    "ClientError",
    "CodecError",
    "CompressionError",
    "CompressionType",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumeContext",
    "Credentials",
    "DataLost",
    "FlowLimits",
    "FrameError",
    "GantryError",
    "HeaderError",
    "IllegalMessage",
    "KeyValue",
    "KeyValueEntry",
    "LitePullConsumer",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "LiteSubscriptionQuotaExceeded",
    "LiteTopicQuotaExceeded",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Middleware",
    "MissingExtra",
    "NoRouteInfo",
    "OffsetOption",
    "PartialFailure",
    "PopOptions",
    "Producer",
    "ProtocolError",
    "PushConsumer",
    "ReceiveContext",
    "RecordError",
    "RefusalReason",
    "RemotingError",
    "ReplicationError",
    "RequestRefused",
    "RequestTimeout",
    "RouteNotReady",
    "SendContext",
    "SendOutcomeUnknown",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "SyncFailed",
    "SyncLitePullConsumer",
    "SyncLitePushConsumer",
    "SyncLiteSimpleConsumer",
    "SyncProducer",
    "SyncPushConsumer",
    "SyncSimpleConsumer",
    "SyncTransactionProducer",
    "ThreadDied",
    "Tombstone",
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
    "run",
    "select_by_hash",
    "select_by_machine_room",
    "select_randomly",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Imported here, because importlib.metadata takes longer to import than all modules of the broker.
        from importlib.metadata import version

        return version("gantrymq")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'gantrymq' has no attribute {name!r}")
