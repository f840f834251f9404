"""Messages with a `deduplicate_id`: the queue, the result of a repeated send, batches and lost connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted_producer import ProducerBroker, producer_over

from gantrymq import AdminClient, Message, Producer, SyncProducer, TransactionProducer
from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.producing.batch_accumulator import split_result
from gantrymq.client.producing.transaction_producer import LocalTransactionState
from gantrymq.errors import BrokerError, ClientError, IllegalMessage, SendOutcomeUnknown
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.remoting.connection import Connection
from gantrymq.testing.embedded import EmbeddedCluster

TOPIC = "topic"
WINDOW = {"+deduplication.window.ms": "60000"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
async def topic(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> str:
    """A topic with a window, of this test."""
    name = request.node.name.partition("[")[0]
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_topic(TopicConfig(name, 4, 4, attributes=dict(WINDOW)), cluster="DefaultCluster")
    return name


@pytest.mark.parametrize("wrong", ["", "a" * 129, "é" * 65, 17, b"a"])
def test_an_invalid_id(wrong: Any) -> None:
    with pytest.raises(IllegalMessage, match="must be a string of 1 to 128 bytes"):
        Message(TOPIC, b"x", deduplicate_id=wrong)


def test_the_id_is_a_property() -> None:
    message = Message(TOPIC, b"x", deduplicate_id="a-1")
    assert (message.deduplicate_id, message.properties) == ("a-1", {"GANTRY_DEDUPLICATE_ID": "a-1"})
    assert Message(TOPIC, b"x").deduplicate_id is None


async def test_a_repeated_send_returns_the_stored_message(cluster: EmbeddedCluster, topic: str) -> None:
    async with Producer(cluster.name_server, "test") as producer:
        first = await producer.send(Message(topic, b"1", deduplicate_id="a"))
        again = await producer.send(Message(topic, b"2", deduplicate_id="a"))
        other = await producer.send(Message(topic, b"3", deduplicate_id="b", sharding_key="a"))
    assert again == first
    assert (other.queue, other.msg_id != first.msg_id) == (first.queue, True)


def test_without_asyncio(cluster: EmbeddedCluster, topic: str) -> None:
    with SyncProducer(Producer(cluster.name_server, "test")) as producer:
        results = [producer.send(Message(topic, b"x", deduplicate_id="a")) for _ in range(2)]
    assert results[0] == results[1]


async def test_messages_with_linger(cluster: EmbeddedCluster, topic: str) -> None:
    async with Producer(cluster.name_server, "test", linger=0.005) as producer:
        futures = [await producer.enqueue(Message(topic, b"x", deduplicate_id=f"{n % 5}")) for n in range(20)]
        results = [await future for future in futures]
    places = {n % 5: set[tuple[object, ...]]() for n in range(5)}
    for n, result in enumerate(results):
        places[n % 5].add((result.queue, result.queue_offset, result.offset_msg_id))
    assert [len(places[n]) for n in range(5)] == [1] * 5


async def test_a_batch_with_known_messages(cluster: EmbeddedCluster, topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 2)
    async with Producer(cluster.name_server, "test") as producer:
        await producer.send_batch([Message(topic, b"x", deduplicate_id=each) for each in "abc"], queue=queue)
        again = await producer.send_batch([Message(topic, b"x", deduplicate_id=each) for each in "cad"], queue=queue)
    assert (again.queue_offset, again.queue_offsets) == (2, (2, 0, 3))
    assert [each.queue_offset for each in split_result(again, 3)] == [2, 0, 3]


def test_the_results_of_a_batch_with_successive_offsets() -> None:
    whole = SendResult(SendStatus.SEND_OK, "m,n", MessageQueue(TOPIC, "broker-a", 0), 7, "1,2")
    assert [each.queue_offset for each in split_result(whole, 2)] == [7, 8]


async def test_a_transaction_has_no_id(cluster: EmbeddedCluster) -> None:
    class Listener:
        def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
            raise AssertionError

        def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
            raise AssertionError

    async with TransactionProducer(cluster.name_server, "test-transactions", Listener()) as producer:
        with pytest.raises(IllegalMessage, match="can't have a deduplicate_id"):
            await producer.send_in_transaction(Message(TOPIC, b"x", deduplicate_id="a"))


# -- brokers with scripted answers ------------------------------------------------------------------------------------


class Unreliable(ProducerBroker):
    """Closes the connection instead of the first `lost` responses."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        answer = super()._send(connection, request)
        if self.lost:
            self.lost -= 1
            connection.abort()
            return None
        return answer


@pytest.mark.parametrize("message_id", ["a", None])
async def test_a_lost_connection(message_id: str | None) -> None:
    """The same send in the same queue follows. Without an id, it could be stored twice."""
    broker = Unreliable(2)
    message = Message(TOPIC, b"x", deduplicate_id=message_id, sharding_key="key")
    async with producer_over(broker) as producer:
        if message_id is None:
            with pytest.raises(SendOutcomeUnknown):
                await producer.send(message)
        else:
            assert (await producer.send(message)).status is SendStatus.SEND_OK
    assert len(broker.sent) == (1 if message_id is None else 3)


async def test_retries_end() -> None:
    broker = Unreliable(9)
    async with producer_over(broker, retry_times=1) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message(TOPIC, b"x", deduplicate_id="a"))
    assert len(broker.sent) == 2


async def test_a_repetition_that_is_refused_does_not_hide_that_the_message_may_be_stored() -> None:
    class Refusing(Unreliable):
        def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
            if not self.lost:
                return RemotingCommand.response(ResponseCode.NO_PERMISSION, "no")
            return super()._send(connection, request)

    async with producer_over(Refusing(1)) as producer:
        with pytest.raises(SendOutcomeUnknown) as raised:
            await producer.send(Message(TOPIC, b"x", deduplicate_id="a"))
    assert isinstance(raised.value.__cause__, BrokerError)


async def test_the_ids_of_a_batch_select_one_broker() -> None:
    brokers = [ProducerBroker("broker-a"), ProducerBroker("broker-b")]
    async with producer_over(*brokers) as producer:
        by_broker: dict[str, list[str]] = {}
        for n in range(20):
            queue = (await producer.send(Message(TOPIC, b"x", deduplicate_id=f"{n}"))).queue
            by_broker.setdefault(queue.broker_name, []).append(f"{n}")
        first, second = by_broker.values()
        batch = await producer.send_batch([Message(TOPIC, b"x", deduplicate_id=own) for own in first])
        assert by_broker[batch.queue.broker_name] == first
        with pytest.raises(ClientError, match="map to different brokers"):
            await producer.send_batch([Message(TOPIC, b"x", deduplicate_id=own) for own in (first[0], second[0])])
