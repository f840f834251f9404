"""Pop requests with huge, negative or invalid fields.

The broker returns a clear error and keeps no state for them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bare_store import damage
from broker_support import config, longest_step, objects_in_memory, server_of
from pop_support import PopPeer, now_ms, popped
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.pop.long_polling import QueueKey, Waiter
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.consume_queue import ConsumeQueue

TOPIC, GROUP = "orders", "poppers"
INT, LONG = 2**31 - 1, 2**63 - 1
HANDLE = f"0 {1_700_000_000_000} 60000 0 0 broker-a 0 0"

#: The fields of a valid request for each code. An empty one has no fields to vary.
GOOD: dict[int, dict[str, Any]] = {
    RequestCode.POP_MESSAGE: {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 0,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
    },
    RequestCode.ACK_MESSAGE: {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 0,
        "extraInfo": HANDLE,
        "offset": 0,
    },
    RequestCode.PEEK_MESSAGE: {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "maxMsgNums": 32},
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 0,
        "extraInfo": HANDLE,
        "offset": 0,
        "invisibleTime": 60_000,
    },
    RequestCode.NOTIFICATION: {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 1,
        "pollTime": 0,
        "bornTime": 0,
    },
    RequestCode.POLLING_INFO: {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0},
}
INVALID, ILLEGAL, NONE = ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE
TOO_LATE, FAILED, PARSE = (
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
)
POP, ACK, PEEK = RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.PEEK_MESSAGE
CHANGE, NOTIFY, INFO = RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO


def handle(**changed: int) -> str:
    words = {"start": 0, "pop_time": 1_700_000_000_000, "invisible": 60_000, "revive": 0} | changed
    return " ".join([*map(str, words.values()), "0", "broker-a", "0", "0"])


@pytest.fixture
async def peer(broker: Broker, remoting: RemotingClient) -> PopPeer:
    broker.topics.put(TopicConfig(TOPIC, 4, 4))
    peer = PopPeer(await remoting.connection(broker.address))
    for n in range(3):
        assert (await peer.send(TOPIC, b"%d" % n)).code == ResponseCode.SUCCESS
    return peer


async def ask(peer: PopPeer, code: int, **changed: object) -> RemotingCommand:
    fields = {name: str(value) for name, value in (GOOD[code] | changed).items()}
    return await peer.ask(code, fields=fields)


@pytest.mark.parametrize("code", GOOD)
async def test_a_good_request_is_answered(peer: PopPeer, code: int) -> None:
    assert (await ask(peer, code)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("code", "field", "value", "answer"),
    [
        (POP, "maxMsgNums", 0, INVALID),
        (POP, "maxMsgNums", -1, INVALID),
        (POP, "maxMsgNums", 33, INVALID),
        (POP, "maxMsgNums", INT, INVALID),
        (POP, "maxMsgNums", INT + 1, FAILED),
        (POP, "queueId", 4, INVALID),
        (POP, "queueId", INT, INVALID),
        (POP, "invisibleTime", -1, INVALID),
        (POP, "invisibleTime", LONG, INVALID),
        (POP, "invisibleTime", LONG + 1, FAILED),
        (POP, "invisibleTime", "9" * 5000, FAILED),
        (POP, "bornTime", -1, TOO_LATE),
        (POP, "bornTime", -LONG, TOO_LATE),
        (POP, "pollTime", -LONG, TOO_LATE),
        (POP, "attemptId", "x" * 256, INVALID),
        (POP, "exp", "x" * 16_385, PARSE),
        (POP, "consumerGroup", "x" * 121, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (POP, "consumerGroup", "", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (POP, "topic", "", ResponseCode.TOPIC_NOT_EXIST),
        (ACK, "queueId", -1, ILLEGAL),
        (ACK, "queueId", INT, ILLEGAL),
        (ACK, "offset", -1, NONE),
        (ACK, "offset", LONG, NONE),
        (ACK, "extraInfo", "", FAILED),
        (ACK, "extraInfo", "x", FAILED),
        (ACK, "extraInfo", handle(start=LONG + 1), FAILED),
        (ACK, "extraInfo", handle(pop_time=LONG * 10), FAILED),
        (ACK, "extraInfo", handle(invisible=LONG), ILLEGAL),
        (ACK, "extraInfo", handle(start=-LONG, pop_time=-LONG, invisible=-LONG), ILLEGAL),
        (ACK, "extraInfo", handle(revive=10**4000), FAILED),
        (ACK, "extraInfo", f"0 0 0 0 0 {'b' * 40_000}", ILLEGAL),
        (PEEK, "maxMsgNums", 0, INVALID),
        (PEEK, "maxMsgNums", -INT, INVALID),
        (PEEK, "queueId", INT, INVALID),
        (CHANGE, "invisibleTime", -1, INVALID),
        (CHANGE, "invisibleTime", LONG, INVALID),
        (CHANGE, "queueId", -1, ILLEGAL),
        (CHANGE, "queueId", INT, ILLEGAL),
        (CHANGE, "offset", -1, NONE),
        (CHANGE, "offset", LONG, NONE),
        (CHANGE, "extraInfo", "x", FAILED),
        (CHANGE, "extraInfo", handle(invisible=LONG), ILLEGAL),
        (NOTIFY, "queueId", INT, INVALID),
        (NOTIFY, "attemptId", "x" * 256, INVALID),
        (INFO, "queueId", INT, INVALID),
    ],
)
async def test_a_bad_field_is_refused(
    peer: PopPeer, broker: Broker, code: int, field: str, value: object, answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    response = await ask(peer, code, **{field: value})
    assert response.code == answer, response.remark
    assert response.remark
    assert len(response.remark) < 500
    assert (len(broker.pops.waiting), len(broker.pops.waiting_notifications), len(broker.pops.buffer)) == (0, 0, 0)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("code", "field", "value"),
    [
        (POP, "bornTime", LONG),
        (POP, "queueId", -2),
        (POP, "queueId", -INT),
        (POP, "initMode", INT),
        (POP, "initMode", -INT),
        (ACK, "extraInfo", handle(revive=LONG)),
        (ACK, "extraInfo", handle(revive=-7)),
        (PEEK, "maxMsgNums", INT),
        (CHANGE, "extraInfo", handle(revive=LONG)),
        (NOTIFY, "bornTime", LONG),
        (NOTIFY, "pollTime", -LONG),
        (NOTIFY, "bornTime", -LONG),
        (INFO, "queueId", -INT),
    ],
)
async def test_an_odd_field_does_no_harm(peer: PopPeer, broker: Broker, code: int, field: str, value: object) -> None:
    assert (await ask(peer, code, **{field: value})).code == ResponseCode.SUCCESS
    assert (len(broker.pops.waiting), len(broker.pops.waiting_notifications)) == (0, 0)


@pytest.mark.parametrize(("code", "waiting"), [(POP, "waiting"), (NOTIFY, "waiting_notifications")])
async def test_nothing_is_held_for_ever_or_whole(peer: PopPeer, broker: Broker, code: int, waiting: str) -> None:
    fields = GOOD[code] | {"queueId": 1, "pollTime": LONG, "bornTime": LONG - 1, "exp": "*", "more": "x" * 100_000}
    request = RemotingCommand.request(code, body=b"x" * 1_000_000, fields={k: str(v) for k, v in fields.items()})
    before = objects_in_memory(Waiter)
    answer = asyncio.create_task(peer.connection.invoke(request, 10_000))
    lines = getattr(broker.pops, waiting)
    await until(lambda: len(lines))
    [waiter] = objects_in_memory(Waiter, before)
    assert waiter.deadline - asyncio.get_running_loop().time() <= 120
    assert (waiter.request.body, waiter.request.raw_ext) == (b"", b"")
    await peer.send(TOPIC, b"new", queue_id=1)
    assert (await answer).code == ResponseCode.SUCCESS


async def test_one_connection_gets_a_quarter_of_the_places(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = Broker(config(tmp_path / "store", max_pop_polling_size=8))
    await broker.start()
    other_client = RemotingClient()
    try:
        broker.topics.put(TopicConfig(TOPIC, 4, 4))
        peer = PopPeer(await remoting.connection(broker.address))
        other = PopPeer(await other_client.connection(broker.address))
        tasks = [asyncio.create_task(peer.pop(TOPIC, poll_ms=20_000)) for _ in range(2)]
        await until(lambda: len(broker.pops.waiting) == 2)
        assert (await peer.pop(TOPIC, poll_ms=20_000)).code == ResponseCode.POLLING_FULL
        tasks.append(asyncio.create_task(other.pop(TOPIC, poll_ms=20_000)))
        await until(lambda: len(broker.pops.waiting) == 3)
        await other_client.close()
        await until(lambda: len(broker.pops.waiting) == 2)
        for task in tasks:
            task.cancel()
    finally:
        await other_client.close()
        await broker.stop()


def batch_ack(start: int, *offsets: int, topic: str = TOPIC, **changed: object) -> dict[str, object]:
    bits = sum(1 << offset - start for offset in offsets)
    data = base64.b64encode(bits.to_bytes(4, "little")).decode()
    one = {"c": GROUP, "t": topic, "r": "0", "so": start, "q": 0, "rq": 0, "pt": now_ms(), "it": 60_000, "b": data}
    return one | changed


def acks_body(acks: list[dict[str, object]]) -> bytes:
    return json.dumps({"brokerName": "broker-a", "acks": acks}).encode()


async def send_acks(peer: PopPeer, acks: list[dict[str, object]]) -> RemotingCommand:
    return await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=acks_body(acks))


async def test_of_a_batch_of_acknowledgements_all_is_taken_that_can_be(peer: PopPeer, broker: Broker) -> None:
    answer = await peer.pop(TOPIC, queue_id=0)
    [first, *_] = popped(answer)
    good = batch_ack(0, 0, 1, 2, pt=first.handle.pop_time, rq=first.handle.revive_queue_id)
    gone = batch_ack(0, 0, topic="gone")
    bad = batch_ack(0, 0, r="nonsense")
    assert (await send_acks(peer, [gone, bad, good])).code == ResponseCode.SYSTEM_ERROR
    assert len(broker.pops.buffer) == 0
    assert broker.offsets.query(GROUP, TOPIC, 0) == 3
    assert (await send_acks(peer, [gone])).code == ResponseCode.SUCCESS


async def test_ten_thousand_acknowledgements_do_not_hold_up_others(peer: PopPeer, broker: Broker) -> None:
    # Encoded in advance, because encoding takes longer than any step of the broker.
    body = acks_body([batch_ack(0, 0, 1, 2, pt=now_ms() + n) for n in range(10_000)])
    sending = asyncio.create_task(peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body, timeout_ms=60_000))
    assert await longest_step(sending.done) < 0.05
    assert (await sending).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("is_retry", [False, True])
async def test_a_damaged_record_is_passed_over(peer: PopPeer, broker: Broker, is_retry: bool) -> None:
    """Damaged records are skipped.

    The broker reads adjacent records together. Here two of them have a wrong size.
    """
    topic = "%RETRY%poppers_orders" if is_retry else TOPIC
    broker.topics.put(TopicConfig(topic, 4, 4))
    queue = broker.store.queue(topic, 2)
    for n in range(8):
        await peer.send(topic, b"%d" % n, queue_id=2)
    for number in (3, 5):
        unit = queue.unit(number)
        assert unit is not None
        for at in range(4):
            damage(broker.store, unit[0], at)
    async with asyncio.timeout(20):
        came = []
        while len(came) < 6 + 3 * is_retry:
            found = await peer.messages(TOPIC, queue_id=-1 if is_retry else 2)
            assert found
            came += [one.body for one in found]
    expected = [b"0", b"1", b"2", b"4", b"6", b"7"]
    assert sorted(came) == sorted(expected + [b"0", b"1", b"2"] * is_retry)


class Waits:
    """Pending pops without a network, and their results."""

    def __init__(self, broker: Broker) -> None:
        self.waiting = broker.pops.waiting
        (self.connection,) = server_of(broker).connections
        self.answered: list[bool] = []
        self.request = RemotingCommand.request(RequestCode.POP_MESSAGE)

    def hold(
        self, line: QueueKey, queues: tuple[ConsumeQueue, ...], seconds: float, answers: Callable[[], bool]
    ) -> bool:
        def attempt(expired: bool) -> bool:
            # As long as a pop that checks several queues takes.
            end = time.thread_time() + 0.0001
            while time.thread_time() < end:
                pass
            if expired or answers():
                self.answered.append(expired)
                return True
            return False

        deadline = asyncio.get_running_loop().time() + seconds
        return self.waiting.hold(line, queues, Waiter(self.connection, self.request, deadline, attempt))


async def test_many_who_wait_are_answered_in_small_steps(broker: Broker, peer: PopPeer) -> None:
    waits = Waits(broker)
    queue = broker.store.queue(TOPIC, 0)
    for number in range(2000):
        line = (TOPIC, f"group-{number % 4}", 0)
        assert waits.hold(line, (queue,), 60, lambda: True)
    await peer.send(TOPIC, b"x")
    assert await longest_step(lambda: len(waits.answered) == 2000) < 0.05
    assert not any(waits.answered)


async def test_many_whose_time_is_up_are_answered_in_small_steps(broker: Broker, peer: PopPeer) -> None:
    waits = Waits(broker)
    queue = broker.store.queue(TOPIC, 0)
    for number in range(5000):
        assert waits.hold((TOPIC, f"group-{number % 1000}", 0), (queue,), 0, lambda: False)
    assert await longest_step(lambda: len(waits.answered) == 5000) < 0.05
    assert all(waits.answered)
    assert await longest_step(lambda: waits.waiting.watches == 0) < 0.05
    assert (len(waits.waiting), waits.waiting.watches) == (0, 0)


async def test_what_is_watched_has_a_bound(broker: Broker, peer: PopPeer) -> None:
    waits = Waits(broker)
    queues = tuple(broker.store.queue("wide", queue_id) for queue_id in range(10_000))
    taken = [waits.hold(("wide", f"group-{n}", -1), queues, 0, lambda: False) for n in range(60)]
    assert taken == [True] * 50 + [False] * 10
    await until(lambda: waits.waiting.watches == 0)
    assert waits.hold(("wide", "group", -1), queues, 0, lambda: False)


async def test_a_client_that_is_gone_leaves_nothing(broker: Broker, remoting: RemotingClient) -> None:
    other = RemotingClient()
    await PopPeer(await other.connection(broker.address)).send(TOPIC, b"x")
    waits = Waits(broker)
    queue = broker.store.queue(TOPIC, 0)
    for number in range(5000):
        assert waits.hold((TOPIC, f"group-{number % 1000}", 0), (queue,), 60, lambda: False)
    await other.close()
    assert await longest_step(lambda: not len(waits.waiting)) < 0.05
