"""Shared by tests of the proxy: a stub of a grpcio client, topics, and messages."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import Any

import grpc
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import BrokerError, NoRouteInfo
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.proxy.call import METHODS
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb


class Rpc:
    """The methods of the service as attributes.

    `await rpc.SendMessage(request)` makes a unary call. `rpc.ReceiveMessage(request)` is an asynchronous iterator.
    `rpc.Telemetry()` is a stream with `read` and `write`.
    """

    def __init__(self, channel: grpc.aio.Channel, client_id: str) -> None:
        self.channel = channel
        self.client_id = client_id

    def __getattr__(self, name: str) -> Any:
        path, method = next((path, method) for path, method in METHODS.items() if method.name == name)
        kind = f"{'stream' if method.client_streams else 'unary'}_{'stream' if method.server_streams else 'unary'}"
        make = getattr(self.channel, kind)
        call = make(
            path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return lambda *request, **options: call(*request, **{"metadata": self.metadata(), "timeout": 20, **options})

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of Apache's clients."""
        return (
            ("x-mq-language", "JAVA"),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-version", "5.0.8"),
            ("x-mq-date-time", time.strftime("%Y%m%dT%H%M%SZ")),
            ("x-mq-request-id", str(uuid.uuid4())),
            ("x-mq-client-id", self.client_id),
        )


async def new_topic(admin: AdminClient, kind: str = "NORMAL", queues: int = 2) -> str:
    """Creates a topic. Returns its name."""
    topic = f"proxy_{kind.lower()}_{uuid.uuid4().hex[:12]}"
    config = TopicConfig(
        topic, read_queue_nums=queues, write_queue_nums=queues, attributes={"+message.type": kind} if kind else {}
    )
    await make_topic(admin, config)
    return topic


async def make_topic(admin: AdminClient, config: TopicConfig) -> None:
    """Creates or changes a topic. Returns when the NameServer has it, too."""
    brokers = await admin.create_topic(config, cluster="DefaultCluster")

    async def is_known() -> bool:
        with suppress(NoRouteInfo):
            queues = (await admin.topic_route(config.topic_name)).queue_datas
            return sum(data.perm == config.perm for data in queues) == len(brokers)
        return False

    await until(is_known)


def message(topic: str, body: bytes = b"body", **system: Any) -> pb.Message:
    """Returns a valid message."""
    properties = system.pop("user_properties", {})
    system.setdefault("message_id", f"01{uuid.uuid4().hex[:30].upper()}")
    system.setdefault("message_type", pb.NORMAL)
    return pb.Message(
        topic=pb.Resource(name=topic),
        body=body,
        user_properties=properties,
        system_properties=pb.SystemProperties(**system),
    )


def producer_settings(topic: str) -> rpc_pb.TelemetryCommand:
    """Returns the first command of a producer: its settings."""
    return rpc_pb.TelemetryCommand(
        settings=pb.Settings(
            client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name=topic)]), user_agent=pb.UA()
        )
    )


async def members_of(admin: AdminClient, group: str) -> list[str]:
    """Returns the client ids of a consumer group according to the brokers."""
    try:
        return sorted(client.client_id for client in (await admin.consumer_connection(group)).connection_set)
    except NoRouteInfo:
        return []
    except BrokerError as e:
        if e.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return []
