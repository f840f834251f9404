"""SendMessage, EndTransaction and RecallMessage by a client's stub, and the messages as other protocols read them."""

from __future__ import annotations

import gzip
import time
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from proxy_support import Rpc, message, new_topic
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.errors import BrokerError, RefusalReason
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageExt
from gantrymq.proxy.statuses import status_of
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster


async def send(rpc: Rpc, *messages: pb.Message) -> rpc_pb.SendMessageResponse:
    return await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=messages))


async def read(cluster: EmbeddedCluster, topic: str, count: int) -> list[MessageExt]:
    """Returns the first `count` messages of a topic, read by the remoting protocol."""
    found: list[MessageExt] = []
    async with LitePullConsumer(cluster.name_server, "GID_proxy_readers") as consumer:
        await consumer.assign(await consumer.queues(topic))

        async def poll() -> bool:
            found.extend(await consumer.poll(timeout=0.1))
            return len(found) >= count

        await until(poll)
    return found


async def test_a_message_is_stored_with_all_that_it_said(
    rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster
) -> None:
    topic = await new_topic(admin)
    sent = message(
        topic, b"hello", tag="red", keys=["k1", "k2"], user_properties={"color": "blue"}, trace_context="00-1-2-01"
    )
    sent.system_properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
    response = await send(rpc, sent)
    assert response.status.code == pb.OK
    (entry,) = response.entries
    assert (entry.status.code, entry.message_id, entry.offset) == (pb.OK, sent.system_properties.message_id, 0)
    (stored,) = await read(cluster, topic, 1)
    assert (stored.body, stored.msg_id, stored.born_timestamp) == (b"hello", entry.message_id, 1_700_000_000_123)
    properties = stored.properties
    assert (properties["TAGS"], properties["KEYS"], properties["color"]) == ("red", "k1 k2", "blue")
    assert (properties["TRACE_CONTEXT"], properties["PGROUP"]) == ("00-1-2-01", topic)
    assert properties["__BORNHOST"].startswith("127.0.0.1:")


async def test_messages_of_one_request_are_a_batch(rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster) -> None:
    topic = await new_topic(admin)
    sent = [message(topic, b"%d" % n, tag=f"t{n}") for n in range(10)]
    response = await send(rpc, *sent)
    assert [entry.message_id for entry in response.entries] == [m.system_properties.message_id for m in sent]
    assert [entry.offset for entry in response.entries] == list(range(10))
    stored = await read(cluster, topic, 10)
    assert sorted((m.queue_offset, m.body, m.properties["TAGS"]) for m in stored) == [
        (n, b"%d" % n, f"t{n}") for n in range(10)
    ]
    assert len({m.queue_id for m in stored}) == 1


async def test_messages_of_one_group_go_to_one_queue(rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster) -> None:
    topic = await new_topic(admin, "FIFO", queues=8)
    for n in range(40):
        response = await send(rpc, message(topic, b"%d" % n, message_group=f"g{n % 10}", message_type=pb.FIFO))
        assert response.status.code == pb.OK
    stored = await read(cluster, topic, 40)
    queues = {(m.properties["__SHARDINGKEY"], m.queue_id) for m in stored}
    assert len(queues) == 10
    assert len({queue for _, queue in queues}) > 1


async def test_a_repeated_message_is_stored_once(rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster) -> None:
    """The id is a user property, and selects the queue."""
    topic = await new_topic(admin, queues=8)
    window = TopicConfig(topic, 8, 8, attributes={"+deduplication.window.ms": "60000"})
    await admin.create_topic(window, cluster="DefaultCluster")

    def one(message_id: str) -> pb.Message:
        return message(topic, b"x", user_properties={"GANTRY_DEDUPLICATE_ID": message_id})

    firsts = [(await send(rpc, one(f"{n}"))).entries[0] for n in range(10)]
    for n, first in enumerate(firsts):
        (again,) = (await send(rpc, one(f"{n}"))).entries
        assert (again.message_id, again.offset, again.transaction_id) == (
            first.message_id,
            first.offset,
            first.transaction_id,
        )
    stored = await read(cluster, topic, 10)
    assert sorted(m.properties["GANTRY_DEDUPLICATE_ID"] for m in stored) == [f"{n}" for n in range(10)]
    assert len({m.queue_id for m in stored}) > 1
    # A batch goes to the queue of its first id, and leaves out what the broker has.
    known = next(m for m in stored if m.properties["GANTRY_DEDUPLICATE_ID"] == "3")
    batch = (await send(rpc, one("3"), one("new"))).entries
    assert [entry.offset for entry in batch] == [
        known.queue_offset,
        max(m.queue_offset for m in stored if m.queue_id == known.queue_id) + 1,
    ]


async def test_the_priority_is_the_queue(rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster) -> None:
    topic = await new_topic(admin, "PRIORITY", queues=4)
    for priority in (2, 0, 9):
        response = await send(rpc, message(topic, b"%d" % priority, message_type=pb.PRIORITY, priority=priority))
        assert response.status.code == pb.OK, response
    stored = await read(cluster, topic, 3)
    assert {(m.priority, m.queue_id) for m in stored} == {(2, 2), (0, 0), (9, 3)}
    response = await send(rpc, *(message(topic, b"x", message_type=pb.PRIORITY, priority=1) for _ in range(2)))
    assert response.status.code == pb.BAD_REQUEST


async def test_a_gzip_body_is_what_readers_of_remoting_get(
    rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster
) -> None:
    topic = await new_topic(admin)
    body = b"some text " * 1000
    await send(rpc, message(topic, gzip.compress(body), body_encoding=pb.GZIP))
    (stored,) = await read(cluster, topic, 1)
    assert stored.body == body


async def test_a_message_of_megabytes_comes_whole(rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster) -> None:
    topic = await new_topic(admin)
    body = bytes(range(256)) * 12_000
    response = await send(rpc, message(topic, body))
    assert response.status.code == pb.OK, response
    (stored,) = await read(cluster, topic, 1)
    assert stored.body == body


# -- delay ----------------------------------------------------------------------------------------------------------


def delayed(topic: str, seconds: float) -> pb.Message:
    due = Timestamp()
    due.FromMilliseconds(int((time.time() + seconds) * 1000))
    return message(topic, b"late", message_type=pb.DELAY, delivery_timestamp=due)


async def test_a_delayed_message_comes_when_it_is_due(rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster) -> None:
    topic = await new_topic(admin, "DELAY")
    began = time.time()
    response = await send(rpc, delayed(topic, 1.5))
    assert response.entries[0].recall_handle
    (stored,) = await read(cluster, topic, 1)
    assert stored.body == b"late"
    assert time.time() - began > 1.4


async def test_a_delayed_message_is_taken_back(rpc: Rpc, admin: AdminClient) -> None:
    topic = await new_topic(admin, "DELAY")
    response = await send(rpc, delayed(topic, 3600))
    entry = response.entries[0]
    request = rpc_pb.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle=entry.recall_handle)
    recalled = await rpc.RecallMessage(request)
    assert (recalled.status.code, recalled.message_id) == (pb.OK, entry.message_id)


async def test_what_is_no_recall_handle_is_refused(rpc: Rpc, admin: AdminClient) -> None:
    topic = await new_topic(admin, "DELAY")
    request = rpc_pb.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle="nonsense")
    answer = await rpc.RecallMessage(request)
    assert (answer.status.code, answer.status.message) == (pb.INTERNAL_SERVER_ERROR, "recall handle is invalid")


# -- transactions ---------------------------------------------------------------------------------------------------


async def end(rpc: Rpc, topic: str, entry: rpc_pb.SendResultEntry, resolution: int) -> rpc_pb.EndTransactionResponse:
    return await rpc.EndTransaction(
        rpc_pb.EndTransactionRequest(
            topic=pb.Resource(name=topic),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=resolution,
            source=pb.SOURCE_CLIENT,
        )
    )


async def test_a_transaction_shows_what_is_committed_alone(
    rpc: Rpc, admin: AdminClient, cluster: EmbeddedCluster
) -> None:
    topic = await new_topic(admin, "TRANSACTION", queues=1)
    for body, resolution in ((b"no", pb.ROLLBACK), (b"yes", pb.COMMIT)):
        response = await send(rpc, message(topic, body, message_type=pb.TRANSACTION))
        (entry,) = response.entries
        assert entry.transaction_id
        assert (await end(rpc, topic, entry, resolution)).status.code == pb.OK
    (stored,) = await read(cluster, topic, 1)
    assert stored.body == b"yes"


async def test_a_transaction_ends_once(rpc: Rpc, admin: AdminClient) -> None:
    topic = await new_topic(admin, "TRANSACTION")
    response = await send(rpc, message(topic, message_type=pb.TRANSACTION))
    (entry,) = response.entries
    assert (await end(rpc, topic, entry, pb.COMMIT)).status.code == pb.OK
    again = (await end(rpc, topic, entry, pb.ROLLBACK)).status
    assert (again.code, again.message) == (pb.INTERNAL_SERVER_ERROR, "cannot found transaction data")


# -- rejected requests ----------------------------------------------------------------------------------------------

_CONTROL = "a\x05b"


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"body": b""}, pb.MESSAGE_BODY_EMPTY, "message body cannot be empty"),
        (
            {"body": b"x" * (4 * 1024 * 1024 + 1)},
            pb.MESSAGE_BODY_TOO_LARGE,
            "message body cannot exceed the max 4194304",
        ),
        ({"message_id": " "}, pb.ILLEGAL_MESSAGE_ID, "message id cannot be empty"),
        ({"tag": "a|b"}, pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'"),
        ({"tag": " "}, pb.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace"),
        ({"tag": _CONTROL}, pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character"),
        ({"keys": [" "]}, pb.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace"),
        ({"keys": [_CONTROL]}, pb.ILLEGAL_MESSAGE_KEY, "key cannot contain control character"),
        ({"message_group": " "}, pb.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace"),
        ({"message_group": "g" * 64}, pb.ILLEGAL_MESSAGE_GROUP, "message group exceed the max size 64"),
        ({"message_group": _CONTROL}, pb.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character"),
        (
            {"user_properties": {"KEYS": "x"}},
            pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
            "property is used by system: KEYS",
        ),
        (
            {"user_properties": {_CONTROL: "x"}},
            pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
            "the key of property cannot contain control character",
        ),
        (
            {"user_properties": {"x": _CONTROL}},
            pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
            "the value of property cannot contain control character",
        ),
        (
            {"user_properties": {f"p{n}": "x" for n in range(129)}},
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            "too many user properties, max is 128",
        ),
        (
            {"user_properties": {"p": "x" * 16_384}},
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            "the total size of user property is too large, max is 16384",
        ),
        (
            {"delivery_timestamp": Timestamp(seconds=9_000_000_000)},
            pb.ILLEGAL_DELIVERY_TIME,
            "the max delay time of message is too large, max is 86400000",
        ),
        (
            {
                "message_type": pb.TRANSACTION,
                "orphaned_transaction_recovery_duration": Duration(seconds=3601),
            },
            pb.BAD_REQUEST,
            "the max transaction recovery time of message is too large, max is 3600",
        ),
        (
            {"message_type": pb.LITE, "lite_topic": "a b"},
            pb.ILLEGAL_LITE_TOPIC,
            "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)",
        ),
        (
            {"message_type": pb.PRIORITY, "priority": -1},
            pb.BAD_REQUEST,
            "the priority must be greater than or equal to 0",
        ),
        (
            {"message_type": pb.TRANSACTION},
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "TopicMessageType validate failed, the expected type is NORMAL, but actual type is TRANSACTION",
        ),
    ],
    ids=str,
)
async def test_a_message_is_refused_as_by_java(
    rpc: Rpc, admin: AdminClient, changes: dict[str, Any], code: int, remark: str
) -> None:
    topic = await new_topic(admin)
    response = await send(rpc, message(topic, **changes))
    assert (response.status.code, response.status.message) == (code, remark)
    assert not response.entries


async def test_a_request_is_refused_as_by_java(rpc: Rpc, admin: AdminClient) -> None:
    topic, other = await new_topic(admin), await new_topic(admin)
    for messages, code, remark in (
        ([], pb.MESSAGE_CORRUPTED, "no message to send"),
        ([message(topic), message(other)], pb.MESSAGE_CORRUPTED, "topic in message is not same"),
        ([message("")], pb.ILLEGAL_TOPIC, "The specified topic is blank"),
        ([message("TBW102")], pb.ILLEGAL_TOPIC, "cannot access system topic"),
        ([message("t" * 128)], pb.ILLEGAL_TOPIC, "The specified topic is longer than topic max length 127."),
    ):
        response = await send(rpc, *messages)
        assert (response.status.code, response.status.message) == (code, remark)


async def test_an_unknown_topic_is_not_found(rpc: Rpc) -> None:
    response = await send(rpc, message("proxy_nowhere"))
    # Java first queries the topic's type, which does not exist.
    assert response.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL])
def test_a_rate_limit_is_too_many_requests(code: ResponseCode) -> None:
    """Clients repeat the request after this status."""
    refusal = BrokerError(code, "limited", "127.0.0.1:10911", RefusalReason.RATE_LIMITED, retry_after_ms=10)
    assert status_of(refusal).code == pb.TOO_MANY_REQUESTS


async def test_who_has_no_client_id_is_told(rpc: Rpc) -> None:
    request = rpc_pb.SendMessageRequest()
    response = await rpc.SendMessage(request, metadata=())
    assert (response.status.code, response.status.message) == (pb.CLIENT_ID_REQUIRED, "client id cannot be empty")
