"""Features of this project's producer with Apache's broker and this project's, and with Apache's consumers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from programs import ask, consume, mqadmin, replier
from servers import Server, gantry_broker, gantry_namesrv, java_broker, java_broker_5_4

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.request_reply import reply_message
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.protocol.message import Message, MessageExt

pytestmark = pytest.mark.interop(feature="send and receive", clients="gantry", servers="{cluster}")

#: Brokers check half messages after a second or two instead of half a minute.
SETTINGS = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "recallMessageEnable": "true"}
TIMEOUT_S = 10


@dataclass(frozen=True)
class Cluster:
    namesrv: Server
    broker: Server

    @property
    def address(self) -> str:
        return self.namesrv.address


#: Starts the broker of each kind.
BROKERS = {"java": java_broker, "gantry": gantry_broker, "java@5.4": java_broker_5_4}


@pytest.fixture(scope="module", params=BROKERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Starts this project's NameServer and a broker of each kind."""
    directory = tmp_path_factory.mktemp(request.param)
    namesrv = gantry_namesrv(directory / "namesrv")
    try:
        broker = BROKERS[request.param](directory / "broker", namesrv.address, **SETTINGS)
        try:
            yield Cluster(namesrv, broker)
        finally:
            broker.kill()
    finally:
        namesrv.kill()


class Listener:
    """The message's body contains the state of its transaction, and the response to a check."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState[message.body.decode().split()[0]]

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.checked.append(message.msg_id)
        return LocalTransactionState[message.body.decode().split()[1]]


@pytest.mark.interop(feature="transactions")
async def test_transactions(cluster: Cluster, topic: str) -> None:
    commit, rollback, unknow = (state.name for state in LocalTransactionState)
    bodies = [f"{commit} {commit}", f"{rollback} {rollback}", f"{unknow} {commit}", f"{unknow} {rollback}"]
    listener = Listener()
    async with TransactionProducer(cluster.address, "transactions", listener) as producer:
        ids = {
            body: (await producer.send_in_transaction(Message(topic, body.encode()), timeout=TIMEOUT_S)).result.msg_id
            for body in bodies
        }
        received = await asyncio.to_thread(consume, cluster.address, topic, 2)
    assert {line["msg_id"] for line in received} == {ids[bodies[0]], ids[bodies[2]]}
    # With these short times, Apache's broker also checks transactions that were already ended.
    assert {ids[bodies[2]], ids[bodies[3]]} <= set(listener.checked)


@pytest.mark.interop(feature="request and reply", clients="java gantry")
async def test_requests_of_this_project_are_answered_by_java(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.address, "askers") as producer:
        await asyncio.to_thread(mqadmin, cluster.address, "updateTopic", "-c", "DefaultCluster", "-t", topic)
        with replier(cluster.address, topic):
            questions = [Message(topic, b"question %d" % n) for n in range(10)]
            replies = await asyncio.gather(*(producer.request(question, timeout=60) for question in questions))
    assert [reply.body for reply in replies] == [b"re: question %d" % n for n in range(10)]


@pytest.mark.interop(feature="request and reply", clients="java gantry")
async def test_requests_of_java_are_answered_by_this_project(cluster: Cluster, topic: str) -> None:
    await asyncio.to_thread(mqadmin, cluster.address, "updateTopic", "-c", "DefaultCluster", "-t", topic)
    consumer = LitePullConsumer(cluster.address, "repliers", start_from="earliest")
    consumer.subscribe(topic)

    async def reply() -> None:
        async with consumer, Producer(cluster.address, "repliers") as producer:
            while True:
                for message in await consumer.poll():
                    await producer.send(reply_message(message, b"re: " + message.body), timeout=TIMEOUT_S)

    replying = asyncio.create_task(reply())
    try:
        answers = await asyncio.to_thread(ask, cluster.address, topic, 6)
    finally:
        replying.cancel()
        await asyncio.gather(replying, return_exceptions=True)
    assert answers == [f"re: question {n}" for n in range(6)]


@pytest.mark.interop(feature="batches")
async def test_automatic_batches_and_namespaces(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.address, "batches", namespace="ns", linger=0.02) as producer:
        first = await producer.send(Message(topic, b"first"), timeout=TIMEOUT_S)
        sends = [producer.send(Message(topic, b"%d" % n, tags="t"), timeout=TIMEOUT_S) for n in range(500)]
        results = [first, *await asyncio.gather(*sends)]
    received = await asyncio.to_thread(consume, cluster.address, f"ns%{topic}", len(results))
    assert {line["msg_id"] for line in received} == {result.msg_id for result in results}
    assert len({result.offset_msg_id for result in results}) == len(results)


@pytest.mark.interop(feature="message traces", clients="java gantry")
async def test_traces_are_read_by_mqadmin(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.address, "traced", enable_trace=True) as producer:
        result = await producer.send(Message(topic, b"body", tags="tag", keys="key"), timeout=TIMEOUT_S)
        batch = await producer.send_batch([Message(topic, b"one"), Message(topic, b"two")], timeout=TIMEOUT_S)
    for msg_id in (result.msg_id, *batch.msg_id.split(",")):
        deadline = time.monotonic() + 60
        output = ""
        while time.monotonic() < deadline and "traced" not in output:
            output = await asyncio.to_thread(mqadmin, cluster.address, "queryMsgTraceById", "-i", msg_id)
        (line,) = (line for line in output.splitlines() if line.startswith("Pub"))
        assert line.split()[1] == "traced"
        assert "success" in line


@pytest.mark.interop(feature="delayed messages")
async def test_a_timer_message_is_taken_back(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.address, "timers") as producer:
        await producer.send(Message(topic, b"now"), timeout=TIMEOUT_S)
        recalled = await producer.send(Message(topic, b"recalled", delay=8), timeout=TIMEOUT_S)
        kept = await producer.send(Message(topic, b"kept", delay=9), timeout=TIMEOUT_S)
        assert recalled.recall_handle
        assert await producer.recall(topic, recalled.recall_handle, timeout=TIMEOUT_S) == recalled.msg_id
    received = await asyncio.to_thread(consume, cluster.address, topic, 2)
    assert kept.msg_id in {line["msg_id"] for line in received}
    assert recalled.msg_id not in {line["msg_id"] for line in received}
