"""PullMessage and offsets, through a complete proxy."""

from __future__ import annotations

import uuid

import pytest
from proxy_support import Rpc, message, new_topic

from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.proxy.times import to_duration, to_timestamp
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb


@pytest.fixture
def group() -> str:
    return f"g_{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def queue(rpc: Rpc, admin: AdminClient) -> pb.MessageQueue:
    """Creates a topic with one queue and the messages 0 to 4, with the tags a and b in turn."""
    topic = await new_topic(admin, queues=1)
    for n in range(5):
        sent = message(topic, b"%d" % n, tag="ab"[n % 2])
        assert (await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[sent]))).status.code == pb.OK
    return pb.MessageQueue(topic=pb.Resource(name=topic), broker=pb.Broker(name="broker-a"))


async def pull(
    rpc: Rpc, queue: pb.MessageQueue, offset: int, *, batch_size: int = 32, expression: str = "*", poll_ms: int = 0
) -> tuple[pb.Code, list[bytes], int | None]:
    """Returns the status code, the bodies, and the next offset."""
    request = rpc_pb.PullMessageRequest(
        group=pb.Resource(name="pullers"),
        message_queue=queue,
        offset=offset,
        batch_size=batch_size,
        filter_expression=pb.FilterExpression(type=pb.TAG, expression=expression),
        long_polling_timeout=to_duration(poll_ms),
    )
    first, *rest = [response async for response in rpc.PullMessage(request)]
    bodies = [response.message.body for response in rest if response.WhichOneof("content") == "message"]
    goes_on = [response.next_offset for response in rest if response.WhichOneof("content") == "next_offset"]
    return first.status.code, bodies, goes_on[0] if goes_on else None


async def test_pulls_from_an_offset(rpc: Rpc, queue: pb.MessageQueue) -> None:
    assert await pull(rpc, queue, 0) == (pb.OK, [b"0", b"1", b"2", b"3", b"4"], 5)
    assert await pull(rpc, queue, 3) == (pb.OK, [b"3", b"4"], 5)
    assert await pull(rpc, queue, 1, batch_size=2) == (pb.OK, [b"1", b"2"], 3)
    assert await pull(rpc, queue, 0, expression="b") == (pb.OK, [b"1", b"3"], 5)
    assert await pull(rpc, queue, 5) == (pb.MESSAGE_NOT_FOUND, [], 5)
    assert await pull(rpc, queue, 99) == (pb.ILLEGAL_OFFSET, [], 5)


async def test_waits_for_what_comes(rpc: Rpc, queue: pb.MessageQueue) -> None:
    request = rpc_pb.PullMessageRequest(
        group=pb.Resource(name="pullers"),
        message_queue=queue,
        offset=5,
        batch_size=1,
        long_polling_timeout=to_duration(15_000),
    )
    call = rpc.PullMessage(request)
    await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(queue.topic.name, b"late")]))
    assert [response.message.body async for response in call if response.HasField("message")] == [b"late"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"offset": -1}, pb.ILLEGAL_OFFSET),
        ({"batch_size": 0}, pb.BAD_REQUEST),
        ({"expression": "||"}, pb.ILLEGAL_FILTER_EXPRESSION),
    ],
    ids=str,
)
async def test_bad_pulls(rpc: Rpc, queue: pb.MessageQueue, changes: dict[str, object], code: pb.Code) -> None:
    offset = changes.pop("offset", 0)
    assert await pull(rpc, queue, offset, **changes) == (code, [], None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (pb.MessageQueue(id=1), pb.BAD_REQUEST),
        (pb.MessageQueue(id=-1), pb.BAD_REQUEST),
        (pb.MessageQueue(broker=pb.Broker(name="nobody")), pb.BAD_REQUEST),
        (pb.MessageQueue(topic=pb.Resource(name="no_such_topic")), pb.TOPIC_NOT_FOUND),
        (pb.MessageQueue(topic=pb.Resource(name="rmq_sys_x")), pb.ILLEGAL_TOPIC),
    ],
    ids=["id", "negative", "broker", "topic", "system"],
)
async def test_queues_that_are_not_there(
    rpc: Rpc, queue: pb.MessageQueue, group: str, changes: pb.MessageQueue, code: pb.Code
) -> None:
    queue.MergeFrom(changes)
    named = pb.Resource(name=group)
    assert await pull(rpc, queue, 0) == (code, [], None)
    update = rpc_pb.UpdateOffsetRequest(group=named, message_queue=queue, offset=1)
    assert (await rpc.UpdateOffset(update)).status.code == code
    assert (await rpc.GetOffset(rpc_pb.GetOffsetRequest(group=named, message_queue=queue))).status.code == code
    assert (await rpc.QueryOffset(rpc_pb.QueryOffsetRequest(message_queue=queue))).status.code == code


async def test_a_groups_offset(rpc: Rpc, admin: AdminClient, queue: pb.MessageQueue, group: str) -> None:
    await admin.create_group(SubscriptionGroupConfig(group), cluster="DefaultCluster")
    asked = rpc_pb.GetOffsetRequest(group=pb.Resource(name=group), message_queue=queue)
    assert (await rpc.GetOffset(asked)).status.code == pb.OFFSET_NOT_FOUND
    update = rpc_pb.UpdateOffsetRequest(group=pb.Resource(name=group), message_queue=queue, offset=3)
    assert (await rpc.UpdateOffset(update)).status.code == pb.OK
    answer = await rpc.GetOffset(asked)
    assert (answer.status.code, answer.offset) == (pb.OK, 3)
    update.offset = -1
    assert (await rpc.UpdateOffset(update)).status.code == pb.ILLEGAL_OFFSET


async def test_a_queues_bounds(rpc: Rpc, queue: pb.MessageQueue) -> None:
    async def query(policy: pb.QueryOffsetPolicy, at_ms: int | None = None) -> tuple[pb.Code, int]:
        request = rpc_pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
        if at_ms is not None:
            request.timestamp.CopyFrom(to_timestamp(at_ms))
        answer = await rpc.QueryOffset(request)
        return answer.status.code, answer.offset

    assert await query(pb.BEGINNING) == (pb.OK, 0)
    assert await query(pb.END) == (pb.OK, 5)
    assert await query(pb.TIMESTAMP, 0) == (pb.OK, 0)
    assert await query(pb.TIMESTAMP, -5) == (pb.OK, 0)
    assert await query(pb.TIMESTAMP, 1 << 70) == (pb.OK, 5)
    assert await query(pb.TIMESTAMP) == (pb.BAD_REQUEST, 0)
    assert await query(7) == (pb.BAD_REQUEST, 0)  # type: ignore[arg-type]
