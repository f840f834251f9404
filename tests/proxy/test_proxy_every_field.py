"""Every rpc with each of its fields missing, empty, negative and huge.

The response must be an error code, and the proxy must still work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from proxy_support import Rpc, message, new_topic, producer_settings
from running_proxy import running_proxy

from gantrymq.client.admin.client import AdminClient
from gantrymq.proxy.call import METHODS
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.times import to_duration, to_timestamp
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.system.clock import now_ms
from gantrymq.testing.embedded import EmbeddedCluster

GROUP = "every_field"
#: Largest depth of nested fields.
DEPTH = 5
#: Number of parallel calls, because brokers respond to long polls only once a second.
AT_ONCE = 128
BAD: dict[int, tuple[object, ...]] = {
    FieldDescriptor.CPPTYPE_INT32: (-1, -(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-1, -(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 99, 2**31 - 1),
    FieldDescriptor.CPPTYPE_BOOL: (True, False),
    FieldDescriptor.CPPTYPE_FLOAT: (-1.0, float("nan"), float("inf")),
    FieldDescriptor.CPPTYPE_STRING: ("", " ", "\x00", "☃ %|../", "x" * 20_000),
}
BAD_BYTES = (b"", b"\xff" * 100_000)
#: Codes that would blame the server.
NOT_THE_CLIENT = ("CODE_UNSPECIFIED", "INTERNAL_ERROR", "INTERNAL_SERVER_ERROR", "PROXY_TIMEOUT")
#: Codes of valid requests, if not OK.
GOOD = {
    "ReceiveMessage": "MESSAGE_NOT_FOUND",
    "PullMessage": "MESSAGE_NOT_FOUND",
    # The client has sent no settings as a consumer of lite topics.
    "SyncLiteSubscription": "UNRECOGNIZED_CLIENT_TYPE",
}
#: Errors of the client for which Java has such a code, too.
AS_IN_JAVA = {
    "AckMessage": "ack message result is empty",
    "EndTransaction": "cannot found transaction data",
    "RecallMessage": "recall handle is invalid",
}
#: gRPC's own codes, for requests without a response: settings in a stream.
REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)

Edit = Callable[[Any], None]


def bad_values(field: FieldDescriptor) -> tuple[object, ...]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_BYTES:
        return BAD_BYTES
    return BAD[field.cpp_type]


def edits(shape: Message, depth: int = DEPTH) -> Iterator[tuple[str, Edit]]:
    """Yields edits that make one field of this message type invalid."""
    for field in shape.DESCRIPTOR.fields:
        name = field.name
        yield f"{name} is missing", lambda each, name=name: each.ClearField(name)
        is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        if is_message and field.message_type.GetOptions().map_entry:
            for key, value in (("", ""), ("\x00", "x"), ("k", "\x00\x01\x02"), ("x" * 20_000, "x" * 20_000)):
                yield f"{name}[{key[:5]!r}]", lambda each, name=name, k=key, v=value: getattr(each, name).update({k: v})
            yield (
                f"{name} * 5000",
                lambda each, name=name: getattr(each, name).update({f"k{n}": "" for n in range(5000)}),
            )
        elif field.is_repeated:
            elements = getattr(shape, name)
            if is_message:
                yield f"{name} has an empty one", lambda each, name=name: getattr(each, name).add()
                yield f"{name} * 5000", lambda each, name=name: [getattr(each, name).add() for _ in range(5000)]
                if elements and depth:
                    for what, edit in edits(elements[0], depth - 1):
                        yield f"{name}[0].{what}", lambda each, name=name, edit=edit: edit(getattr(each, name)[0])
            else:
                for bad in bad_values(field):
                    yield f"{name} has {bad!r:.20}", lambda each, name=name, bad=bad: getattr(each, name).append(bad)
        elif is_message:
            yield f"{name} is empty", lambda each, name=name: _emptied(each, name)
            if depth:
                for what, edit in edits(getattr(shape, name), depth - 1):
                    yield f"{name}.{what}", lambda each, name=name, edit=edit: edit(getattr(each, name))
        else:
            for bad in bad_values(field):
                yield f"{name}={bad!r:.20}", lambda each, name=name, bad=bad: setattr(each, name, bad)


def _emptied(each: Any, name: str) -> None:
    each.ClearField(name)
    getattr(each, name).SetInParent()


def spoiled(request: Message) -> Iterator[tuple[str, Message]]:
    for what, edit in edits(request):
        copy = type(request)()
        copy.CopyFrom(request)
        edit(copy)
        yield what, copy


@pytest.fixture
async def proxy(cluster: EmbeddedCluster) -> AsyncIterator[Proxy]:
    """Yields a proxy that does not wait for messages."""
    waits = {
        "grpc_client_consumer_min_long_polling_timeout_millis": 0,
        "grpc_client_consumer_max_long_polling_timeout_millis": 10,
    }
    async with running_proxy(cluster.name_server, **waits) as proxy:
        yield proxy


async def good_request(method: str, rpc: Rpc, admin: AdminClient) -> Any:
    """Returns a request whose response is OK."""
    kind = {"EndTransaction": "TRANSACTION", "RecallMessage": "DELAY"}.get(method, "NORMAL")
    topic_name = await new_topic(admin, kind)
    topic, group = pb.Resource(name=topic_name), pb.Resource(name=GROUP)
    endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=8081)])
    queue = pb.MessageQueue(topic=topic, id=0, broker=pb.Broker(name="broker-a", endpoints=endpoints))
    everything = pb.FilterExpression(type=pb.TAG, expression="*")
    telling = producer_settings(topic_name)
    if method in ("Heartbeat", "NotifyClientTermination"):
        stream = rpc.Telemetry()
        await stream.write(telling)
        await stream.read()

    async def send(**system: Any) -> Any:
        response = await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(topic_name, **system)]))
        assert response.status.code == pb.OK
        return response.entries[0]

    async def receive() -> pb.Message:
        await send()
        request = rpc_pb.ReceiveMessageRequest(
            group=group,
            message_queue=pb.MessageQueue(topic=topic, id=-1),
            filter_expression=everything,
            batch_size=1,
            invisible_duration=to_duration(60_000),
            long_polling_timeout=to_duration(10),
        )
        while True:
            async for response in rpc.ReceiveMessage(request):
                if response.HasField("message"):
                    return response.message

    match method:
        case "QueryRoute":
            return rpc_pb.QueryRouteRequest(topic=topic, endpoints=endpoints)
        case "QueryAssignment":
            return rpc_pb.QueryAssignmentRequest(topic=topic, group=group, endpoints=endpoints)
        case "Heartbeat":
            return rpc_pb.HeartbeatRequest(client_type=pb.PRODUCER)
        case "NotifyClientTermination":
            return rpc_pb.NotifyClientTerminationRequest()
        case "Telemetry":
            return telling
        case "SendMessage":
            one = message(topic_name, tag="t", keys=["k"], born_host="here", user_properties={"mine": "x"})
            return rpc_pb.SendMessageRequest(messages=[one])
        case "ReceiveMessage":
            return rpc_pb.ReceiveMessageRequest(
                group=group,
                message_queue=pb.MessageQueue(topic=topic, id=-1),
                filter_expression=everything,
                batch_size=1,
                invisible_duration=to_duration(60_000),
                long_polling_timeout=to_duration(10),
                attempt_id="a",
            )
        case "PullMessage":
            return rpc_pb.PullMessageRequest(
                group=group, message_queue=queue, offset=0, batch_size=1, filter_expression=everything
            )
        case "UpdateOffset":
            return rpc_pb.UpdateOffsetRequest(group=group, message_queue=queue, offset=0)
        case "GetOffset":
            await rpc.UpdateOffset(rpc_pb.UpdateOffsetRequest(group=group, message_queue=queue, offset=0))
            return rpc_pb.GetOffsetRequest(group=group, message_queue=queue)
        case "QueryOffset":
            return rpc_pb.QueryOffsetRequest(
                message_queue=queue, query_offset_policy=pb.TIMESTAMP, timestamp=to_timestamp(now_ms())
            )
        case "AckMessage":
            system = (await receive()).system_properties
            entry = rpc_pb.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
            return rpc_pb.AckMessageRequest(group=group, topic=topic, entries=[entry])
        case "ChangeInvisibleDuration":
            system = (await receive()).system_properties
            return rpc_pb.ChangeInvisibleDurationRequest(
                group=group,
                topic=topic,
                receipt_handle=system.receipt_handle,
                message_id=system.message_id,
                invisible_duration=to_duration(60_000),
            )
        case "ForwardMessageToDeadLetterQueue":
            system = (await receive()).system_properties
            return rpc_pb.ForwardMessageToDeadLetterQueueRequest(
                group=group,
                topic=topic,
                receipt_handle=system.receipt_handle,
                message_id=system.message_id,
                delivery_attempt=1,
                max_delivery_attempts=1,
            )
        case "EndTransaction":
            half = await send(message_type=pb.TRANSACTION)
            return rpc_pb.EndTransactionRequest(
                topic=topic,
                message_id=half.message_id,
                transaction_id=half.transaction_id,
                resolution=pb.COMMIT,
                source=pb.SOURCE_CLIENT,
            )
        case "RecallMessage":
            late = await send(message_type=pb.DELAY, delivery_timestamp=to_timestamp(now_ms() + 3_600_000))
            return rpc_pb.RecallMessageRequest(topic=topic, recall_handle=late.recall_handle)
        case _:
            return rpc_pb.SyncLiteSubscriptionRequest(topic=topic, group=group, lite_topic_set=["lite"])


async def answer(rpc: Rpc, method: str, request: Message) -> tuple[str, str]:
    """Returns the code of the response, or gRPC's code, and the text."""
    kind = next(each for each in METHODS.values() if each.name == method)
    try:
        if kind.client_streams:
            stream = rpc.Telemetry()
            await stream.write(request)
            await stream.done_writing()
            responses = [each async for each in stream]
            # A command without settings has no response.
            status = responses[0].status if responses else pb.Status(code=pb.OK)
        elif kind.server_streams:
            responses = [each async for each in getattr(rpc, method)(request)]
            status = next(each.status for each in responses if each.HasField("status"))
        else:
            status = (await getattr(rpc, method)(request)).status
    except grpc.aio.AioRpcError as e:
        if e.code() not in REFUSED:
            raise
        return e.code().name, e.details() or ""
    # `Name` raises an error for unknown codes.
    return pb.Code.Name(status.code), status.message


@pytest.mark.parametrize("method", sorted(method.name for method in METHODS.values()))
async def test_each_field(method: str, rpc: Rpc, admin: AdminClient, caplog: pytest.LogCaptureFixture) -> None:
    request = await good_request(method, rpc, admin)
    failed: list[str] = []
    work = spoiled(request)

    async def ask() -> None:
        for what, bad in work:
            try:
                code, text = await answer(rpc, method, bad)
            except grpc.aio.AioRpcError as e:
                failed.append(f"{what}: {e.code()} {e.details()}")
                continue
            is_wrong = code in NOT_THE_CLIENT and text != AS_IN_JAVA.get(method)
            # Text of the request is truncated in the response.
            if is_wrong or len(text) > 1000:
                failed.append(f"{what}: {code} {text:.300}")

    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    assert failed == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    # Other requests still work.
    code, _ = await answer(rpc, method, await good_request(method, rpc, admin))
    assert code == GOOD.get(method, "OK")
