"""Pop in order, over a connection and in the plain table.

The tests also cover `consumerOrderInfo.json`, in the format of Java.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from broker_support import config
from pop_support import Popped, PopPeer, now_ms, popped
from step_timer import StepTimer
from wait_until import until
from wrong_clock import WrongClock, set_clock

from gantrymq.background.jobs import Jobs
from gantrymq.broker.broker import Broker
from gantrymq.broker.pop.orderly import OrderlyPops, Outcome
from gantrymq.broker.tables.persistence import TablePersistence
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.pop import NotificationRequestHeader
from gantrymq.remoting.client import RemotingClient

TOPIC, GROUP = "orders", "poppers"

#: The file that Apache's `QueueLevelConsumerManager` wrote for offsets 3, 4 and 7. Two of them were popped before.
JAVA_FILE = (
    b'{"orderInfoCount":1,"orderedConsumptionLevel":"QUEUE","table":{"t@g":{1:{"cm":0,"i":60000,"l":1795257441907,'
    b'"o":[3,1,4],"oc":{3:1,4:1},"ot":{4:99},"popTime":1800}}}}'
)


@pytest.fixture
async def peer(broker: Broker, remoting: RemotingClient) -> PopPeer:
    broker.topics.put(TopicConfig(TOPIC, 2, 2))
    peer = PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    for i in range(6):
        await peer.send(TOPIC, b"%d" % i, queue_id=0)
    return peer


async def pop(peer: PopPeer, **options: object) -> list[Popped]:
    return popped(await peer.pop(TOPIC, order=True, **options))  # type: ignore[arg-type]


async def test_a_queue_is_blocked_until_all_is_acknowledged(peer: PopPeer, broker: Broker) -> None:
    first = await pop(peer, count=2)
    assert [one.body for one in first] == [b"0", b"1"]
    assert {one.handle.revive_queue_id for one in first} == {999}
    assert await pop(peer) == []
    await peer.ack(first[1])
    assert await pop(peer) == []
    await peer.ack(first[0])
    assert broker.offsets.query(GROUP, TOPIC, 0) == 2
    assert [one.body for one in await pop(peer)] == [b"2", b"3", b"4", b"5"]


async def test_an_acknowledgement_wakes_who_waits(peer: PopPeer, broker: Broker) -> None:
    (first,) = await pop(peer, count=1)
    waiting = asyncio.create_task(pop(peer, count=1, poll_ms=15_000))
    async with asyncio.timeout(5):
        await until(lambda: len(broker.pops.waiting))
        await peer.ack(first)
        assert [one.body for one in await waiting] == [b"1"]


async def test_what_is_not_acknowledged_comes_again_in_order(peer: PopPeer, broker: Broker) -> None:
    first = await pop(peer, count=3, invisible_ms=200)
    await peer.ack(first[0])
    answer = await peer.pop(TOPIC, order=True, count=3, poll_ms=15_000)
    again = popped(answer)
    assert [one.body for one in again] == [b"1", b"2", b"3"]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1;0 0 0"
    # The receipt handles of the first batch are now invalid.
    assert (await peer.ack(first[1])).code == ResponseCode.SUCCESS
    assert broker.offsets.query(GROUP, TOPIC, 0) == 1


async def test_invisible_time_is_changed(peer: PopPeer) -> None:
    (first,) = await pop(peer, count=1)
    changed = await peer.change(first, 100)
    assert changed.ext_fields["popTime"] == str(first.handle.pop_time)
    (again,) = await pop(peer, count=1, poll_ms=15_000)
    assert again.body == b"0"


@pytest.mark.parametrize("queue_id", [0, -1])
@pytest.mark.parametrize("is_notification", [False, True])
async def test_a_changed_time_is_known_to_who_waits(
    peer: PopPeer, broker: Broker, queue_id: int, is_notification: bool
) -> None:
    (first,) = await pop(peer, count=1)
    if is_notification:
        ask = NotificationRequestHeader(
            consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, poll_time=15_000, born_time=now_ms(), order=True
        )
        answer = asyncio.create_task(peer.ask(RequestCode.NOTIFICATION, ask, timeout_ms=20_000))
    else:
        answer = asyncio.create_task(peer.pop(TOPIC, order=True, count=1, queue_id=queue_id, poll_ms=15_000))
    waiting = broker.pops.waiting_notifications if is_notification else broker.pops.waiting
    await until(lambda: len(waiting))
    # The invisible duration first gets longer, and then shorter than it was.
    for invisible_ms in (120_000, 200):
        assert (await peer.change(first, invisible_ms)).code == ResponseCode.SUCCESS
    async with asyncio.timeout(8):
        if is_notification:
            assert (await answer).ext_fields["hasMsg"] == "true"
        else:
            assert [one.body for one in popped(await answer)] == [b"0"]


async def test_who_waits_since_a_restart_is_answered_when_the_queue_is_free(
    tmp_path: Path, remoting: RemotingClient
) -> None:
    for run in range(2):
        broker = Broker(config(tmp_path / "store"))
        await broker.start()
        peer = PopPeer(await remoting.connection(broker.address))
        if run == 0:
            await peer.send(TOPIC, b"x")
            assert len(await pop(peer, invisible_ms=2000)) == 1
        else:
            async with asyncio.timeout(8):
                assert [one.body for one in await pop(peer, poll_ms=15_000)] == [b"x"]
        await broker.stop()


async def test_a_clock_that_was_set_back_costs_no_more_than_that(
    peer: PopPeer, broker: Broker, wrong_clock: WrongClock
) -> None:
    """A clock that is set back delays a pop only by that time.

    The same holds for a clock that is a millisecond behind that of the event loop.
    """
    await pop(peer, count=1, invisible_ms=300)
    waiting = asyncio.create_task(pop(peer, count=1, poll_ms=15_000))
    await until(lambda: len(broker.pops.waiting))
    wrong_clock.ahead_s = -0.3
    async with asyncio.timeout(8):
        assert [one.body for one in await waiting] == [b"0"]


@pytest.mark.parametrize("queue_id", [0, -1])
@pytest.mark.parametrize("is_notification", [False, True])
async def test_a_millisecond_that_begins_during_a_try(
    peer: PopPeer, queue_id: int, is_notification: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is still blocked during the attempt, but not when the time of the next attempt is computed.

    Without a special case, there would be no next attempt.
    """
    await pop(peer, count=1, invisible_ms=300)
    loop, looked = asyncio.get_running_loop(), 0.0

    def ticking() -> int:
        """Returns a time 5 ms later if it is called again in the same event-loop iteration."""
        nonlocal looked
        is_second, looked = looked == loop.time(), loop.time()
        return time.time_ns() + 5_000_000 * is_second

    set_clock(monkeypatch, ticking, time.time)
    async with asyncio.timeout(8):
        if is_notification:
            ask = NotificationRequestHeader(
                consumer_group=GROUP,
                topic=TOPIC,
                queue_id=queue_id,
                poll_time=15_000,
                born_time=time.time_ns() // 1_000_000,
                order=True,
            )
            answer = await peer.ask(RequestCode.NOTIFICATION, ask, timeout_ms=20_000)
            assert answer.ext_fields["hasMsg"] == "true"
        else:
            assert [one.body for one in await pop(peer, count=1, queue_id=queue_id, poll_ms=15_000)] == [b"0"]


async def test_only_the_last_batch_has_times_of_its_own(peer: PopPeer, broker: Broker) -> None:
    (first,) = await pop(peer, count=1)
    other = Popped(first.message, first.handle)
    other.message.queue_offset = 3
    assert (await peer.change(other, 1000)).code == ResponseCode.SUCCESS
    info = broker.pops.orderly.find(TOPIC, GROUP, 0)
    assert info is not None
    assert info.visible_at == {}


async def test_the_same_attempt_is_not_held_up_by_itself(peer: PopPeer) -> None:
    first = await pop(peer, count=2, attempt_id="one")
    again = await pop(peer, count=2, attempt_id="one")
    assert [one.body for one in again] == [one.body for one in first]
    assert await pop(peer, attempt_id="two") == []


async def test_a_reset_of_the_group_wins(peer: PopPeer, broker: Broker) -> None:
    assert len(await pop(peer, count=2)) == 2
    broker.offsets.commit(GROUP, TOPIC, 0, 5)
    assert [one.body for one in await pop(peer)] == [b"5"]


async def test_an_acknowledgement_of_another_message_is_refused(peer: PopPeer) -> None:
    (first,) = await pop(peer, count=1)
    wrong = Popped(first.message, first.handle)
    wrong.message.queue_offset = 4
    assert (await peer.ack(wrong)).code == ResponseCode.MESSAGE_ILLEGAL


def table(path: Path, gone: str = "") -> tuple[OrderlyPops, TablePersistence]:
    persistence = TablePersistence(config(path.parent), Jobs())
    pops = OrderlyPops(path, lambda topic, group, queue_id: topic != gone, persistence=persistence)
    pops.load()
    return pops, persistence


def test_javas_file_is_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, lambda: 1795257441907 * 10**6, time.time)
    path = tmp_path / "consumerOrderInfo.json"
    path.write_bytes(JAVA_FILE)
    pops, persistence = table(path)
    assert pops.is_blocked("t", "g", 1, None, 0, 61_799)
    assert not pops.is_blocked("t", "g", 1, None, 0, 61_800)
    assert pops.ack("t", "g", 1, 4, 1800) == 3
    assert pops.ack("t", "g", 1, 5, 1800) is Outcome.ILLEGAL
    assert pops.ack("t", "g", 1, 3, 1799) is Outcome.TOO_LATE
    persistence.save()
    assert json.loads(path.read_bytes())["table"]["t@g"]["1"]["cm"] == 2
    assert table(path)[0].ack("t", "g", 1, 3, 1800) == 7


def test_what_is_gone_or_old_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, lambda: 10**9, time.time)
    path = tmp_path / "consumerOrderInfo.json"
    pops, persistence = table(path, "gone")
    for topic in ("kept", "gone"):
        pops.popped(topic, "g", 0, 0, [0], None, 1000, 1000, 0)
    pops.popped("old", "g", 0, 0, [0], None, 1000, -(10**9), 0)
    persistence.save()
    assert list(json.loads(path.read_bytes())["table"]) == ["kept@g"]


def test_batches_of_deleted_topics_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, lambda: 1000 * 10**6, time.time)
    pops, persistence = table(tmp_path / "consumerOrderInfo.json")
    for topic, group, queue_id in (("a", "g", 0), ("a", "g", 1), ("a", "h", 0), ("b", "g", 0)):
        pops.popped(topic, group, queue_id, 5, [5], None, 1000, 1000, 0)
    pops.forget("b", "g", 0)
    pops.popped("b", "h", 0, 5, [5], None, 1000, 1000, 0)
    persistence.save()
    loaded, _ = table(tmp_path / "consumerOrderInfo.json")
    for one in (pops, loaded):
        one.discard_topics({"a", "unknown"})
        assert len(one) == 1
        assert one.find("a", "g", 1) is None
        assert one.find("b", "h", 0) is not None
    assert not pops.was_moved("a", "g", 1, 7)


def test_many_batches_do_not_delay_a_deletion(tmp_path: Path) -> None:
    """A broker deletes 50 expired lite topics at once, and others can have batches in flight."""
    pops, _ = table(tmp_path / "consumerOrderInfo.json")
    for number in range(20_000):
        pops.popped(f"topic-{number}", "g", 0, 0, [0], None, 1000, now_ms(), 0)
    timer = StepTimer()
    with timer.step():
        for number in range(100):
            pops.discard_topics({f"topic-{number}"})
    assert len(pops) == 19_900
    assert timer.longest < 0.1
    # The search for unused batches pauses after 500.
    assert len(list(pops.removal())) == 19_900 // 500
