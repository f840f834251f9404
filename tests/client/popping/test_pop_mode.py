"""Push consumers whose broker assigns the queues, in pull or in pop mode."""

from __future__ import annotations

import asyncio

import pytest
from constants import change_constant
from inbox import Inbox, queues_of, send_all
from internals import popped_queues
from records import message_at
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.consuming.rebalance import allocate_by_consistent_hash
from gantrymq.client.popping.popped_queues import PopOptions, retry_after
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageExt


async def set_mode(name_server: str, topic: str, group: str, mode: str) -> None:
    async with AdminClient(name_server) as admin:
        await admin.set_consume_mode(group, topic, mode, cluster="DefaultCluster")


async def test_pulls_what_the_broker_says(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    await send_all(producer, topic, [b"1", b"2"])
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, client_rebalance=False, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(inbox.messages) == 2)
        assert queues_of(consumer, topic) == 4


async def test_pops_what_is_in_pop_mode(name_server: str, producer: Producer, topic: str, unique: str) -> None:
    await send_all(producer, topic, [b"%d" % n for n in range(10)])
    await set_mode(name_server, topic, unique, "POP")
    inbox = Inbox()
    consumer = PushConsumer(name_server, unique, inbox, client_rebalance=False, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(inbox.messages) >= 10)
        assert {queue.queue_id for queue in consumer.assignment if queue.topic == topic} == {-1}
        await send_all(producer, topic, [b"last"])
        await until(lambda: len(inbox.messages) >= 11)
    assert inbox.bodies == [b"%d" % n for n in range(10)] + [b"last"]
    assert all(message.properties["POP_CK"] for message in inbox.messages)


async def test_what_fails_in_pop_mode_comes_again(
    name_server: str,
    producer: Producer,
    topic: str,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change_constant(monkeypatch, "popped_queues.RETRY_AFTER_S", (1,))
    await send_all(producer, topic, [b"bad"])
    await set_mode(name_server, topic, unique, "POP")
    tries: list[tuple[str, int]] = []

    async def handle(message: MessageExt) -> None:
        tries.append((message.topic, message.reconsume_times))
        if not message.reconsume_times:
            raise ValueError("not yet")

    consumer = PushConsumer(name_server, unique, handle, client_rebalance=False, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(tries) == 2)
    assert tries == [(topic, 0), (topic, 1)]
    (failure,) = [line for line in caplog.messages if line.startswith("handler failed")]
    assert f"topic {topic!r}" in failure
    assert failure.endswith("attempt 1; next attempt in 1 s")


def test_when_a_failed_message_comes_again() -> None:
    message = message_at(0)
    now = message.born_timestamp / 1000
    delays = []
    for times in range(16):
        message.reconsume_times = times
        delays.append(retry_after(message, 16, now))
    assert delays == [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    message.reconsume_times = 16
    # It failed often, but in a short time. It is given up only at an age of four hours.
    assert retry_after(message, 16, now + 65) == 120
    assert retry_after(message, 16, now + 7201) == 7200
    assert retry_after(message, 16, now + 14_401) is None


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ClientError, match="invisible_time"):
        PopOptions(invisible_time=4.999)
    with pytest.raises(ClientError, match="batch_size"):
        PopOptions(batch_size=33)
    with pytest.raises(ClientError, match="brokers share out"):
        PushConsumer("127.0.0.1:9876", "group", Inbox(), client_rebalance=False, allocate=allocate_by_consistent_hash())


class Acks:
    """Result codes of this client's ACK_MESSAGE requests."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def before_request(self, address: str, request: RemotingCommand) -> None:
        pass

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        if request.code == RequestCode.ACK_MESSAGE:
            self.codes.append(response.code)


async def test_what_was_handled_is_acknowledged_though_the_queue_was_given_up(
    name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    """A rebalance happens while the handler runs. Without the acknowledgement, the message would be redelivered."""
    await send_all(producer, topic, [b"1"])
    await set_mode(name_server, topic, unique, "POP")
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: MessageExt) -> None:
        began.set()
        await go_on.wait()

    acks = Acks()
    consumer = PushConsumer(
        name_server,
        unique,
        handle,
        client_rebalance=False,
        start_from="earliest",
        hooks=[acks],
    )
    consumer.subscribe(topic)
    async with consumer:
        await asyncio.wait_for(began.wait(), 20)
        popped = popped_queues(consumer)
        await popped.assign(topic, set())
        go_on.set()
        await until(lambda: acks.codes == [ResponseCode.SUCCESS])


@pytest.mark.parametrize("in_threads", [False, True])
async def test_a_handler_that_changes_the_properties_stops_nothing(
    name_server: str,
    producer: Producer,
    topic: str,
    unique: str,
    caplog: pytest.LogCaptureFixture,
    in_threads: bool,
) -> None:
    await set_mode(name_server, topic, unique, "POP")
    bodies: list[bytes] = []

    def handle(message: MessageExt) -> None:
        message.properties.clear()
        bodies.append(message.body)

    async def handle_in_task(message: MessageExt) -> None:
        handle(message)

    consumer = PushConsumer(
        name_server,
        unique,
        handle if in_threads else handle_in_task,
        client_rebalance=False,
        start_from="earliest",
    )
    consumer.subscribe(topic)
    await send_all(producer, topic, [b"%d" % n for n in range(5)])
    async with consumer:
        await until(lambda: len(bodies) == 5 and caplog.text.count("can't acknowledge message") == 5)


class FailingHook:
    """A user's hook that fails for the first `times` requests of a code."""

    def __init__(self, code: RequestCode, times: int) -> None:
        self.code = code
        self.times = times

    def before_request(self, address: str, request: RemotingCommand) -> None:
        if request.code == self.code and self.times:
            self.times -= 1
            raise ValueError("as scripted")

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        pass


@pytest.mark.parametrize(("mode", "code"), [("POP", RequestCode.POP_MESSAGE), ("PULL", RequestCode.PULL_MESSAGE)])
async def test_a_hook_that_fails_ends_no_queue(
    name_server: str,
    producer: Producer,
    topic: str,
    unique: str,
    mode: str,
    code: RequestCode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change_constant(monkeypatch, "popped_queues.RETRY_DELAY_S", 0.01)
    change_constant(monkeypatch, "queue_puller.RETRY_DELAY_S", 0.01)
    await set_mode(name_server, topic, unique, mode)
    inbox, hook = Inbox(), FailingHook(code, 10)
    consumer = PushConsumer(
        name_server,
        unique,
        inbox,
        client_rebalance=False,
        start_from="earliest",
        hooks=[hook],
    )
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: hook.times == 0)
        await send_all(producer, topic, [b"1", b"2"])
        await until(lambda: inbox.bodies == [b"1", b"2"])
    assert "as scripted" in caplog.text
