"""Sends that need a new store file while the disk is slow.

They wait for preallocation. Other sends do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from broker_support import Peer, set_preallocation_wait
from pop_support import PopPeer
from slow_disk import SlowMaking
from transaction_support import Producer, end_header
from wait_until import until

from gantrymq.broker.append import preallocation_waits as preallocation_waits
from gantrymq.broker.append.pending_requests import PendingRequests
from gantrymq.broker.broker import Broker
from gantrymq.limits import PREALLOCATION_WAITS
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT
from gantrymq.system import files


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> Iterator[SlowMaking]:
    making = SlowMaking(monkeypatch)
    broker.config.store.message_index_enable = False
    yield making
    making.works.set()


async def test_first_sends_to_a_queue(peer: Peer, making: SlowMaking) -> None:
    """The sends are stored in order, and other clients are served meanwhile."""
    assert (await peer.send("orders", b"first", queue_id=1)).code == ResponseCode.SUCCESS
    making.works.clear()
    waiting = [asyncio.ensure_future(peer.send("orders", b"%d" % n)) for n in range(3)]
    half = asyncio.ensure_future(peer.send("orders", b"half", properties={"TRAN_MSG": "true", "PGROUP": "producers"}))
    batch = encode_batch([(0, b"3", b""), (0, b"4", b"")])
    waiting.append(asyncio.ensure_future(peer.send("orders", batch, code=RequestCode.SEND_BATCH_MESSAGE)))
    assert (await peer.send("orders", b"second", queue_id=1)).code == ResponseCode.SUCCESS
    assert not any(send.done() for send in [*waiting, half])
    making.works.set()
    answers = await asyncio.gather(*waiting, half)
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 5
    assert [answer.ext_fields["queueOffset"] for answer in answers[:4]] == ["0", "1", "2", "3"]
    pulled = decode_messages((await peer.pull("orders")).body)
    assert [message.body for message in pulled] == [b"%d" % n for n in range(5)]
    assert making.threads == {"gantry-preallocation"}


async def test_nobody_overtakes_a_batch_that_waits(peer: Peer, making: SlowMaking) -> None:
    """The file has space for one more message, but not for the whole batch."""
    for n in range(2):
        for queue_id in range(2):
            assert (await peer.send("orders", b"%d" % n, queue_id=queue_id)).code == ResponseCode.SUCCESS
    making.works.clear()
    batch = encode_batch([(0, b"many", b"")] * 1000)
    waiting = [asyncio.ensure_future(peer.send("orders", batch, code=RequestCode.SEND_BATCH_MESSAGE))]
    waiting += [asyncio.ensure_future(peer.send("orders", b"behind")) for _ in range(3)]
    # A message of another queue, after all of these.
    assert (await peer.send("orders", b"2", queue_id=1)).code == ResponseCode.SUCCESS
    assert not any(send.done() for send in waiting)
    making.works.set()
    answers = await asyncio.gather(*waiting)
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 4
    assert [int(answer.ext_fields["queueOffset"].partition(",")[0]) for answer in answers] == [2, 1002, 1003, 1004]


@pytest.mark.parametrize("delay", [{"TIMER_DELAY_MS": "1"}, {"DELAY": "1"}])
async def test_what_is_due_waits_for_no_line(delay: dict[str, str], peer: Peer, broker: Broker) -> None:
    """Due messages are delivered although there is a wait queue.

    With many producers, the wait queue exists as long as they send.
    """
    sent = await peer.send("orders", b"due", properties=delay)
    assert sent.code == ResponseCode.SUCCESS
    # The target queue has no file yet.
    broker.store.close_wait_queue()
    pulled = await peer.pull("orders", suspend_ms=5000)
    assert [message.body for message in decode_messages(pulled.body)] == [b"due"]


async def test_what_was_popped_comes_back_beside_a_line(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"popped")
    pop = await PopPeer(peer.connection).pop("orders", queue_id=0, invisible_ms=1000)
    assert pop.code == ResponseCode.SUCCESS
    broker.store.close_wait_queue()

    def is_back() -> bool:
        queue = broker.store.find_queue("%RETRY%poppers_orders", 0)
        return queue is not None and queue.max_offset == 1

    await until(is_back)


async def test_a_file_that_takes_too_long(peer: Peer, making: SlowMaking, monkeypatch: pytest.MonkeyPatch) -> None:
    set_preallocation_wait(monkeypatch, 0.05)
    await peer.send("orders", b"first", queue_id=1)
    making.works.clear()
    answers = await asyncio.gather(*(peer.send("orders", b"%d" % n) for n in range(3)))
    assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_BUSY}
    making.works.set()
    set_preallocation_wait(monkeypatch, 10)
    answer = await peer.send("orders", b"last")
    assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")


async def test_a_full_disk_is_said_to_all_who_wait(
    peer: Peer, making: SlowMaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.send("orders", b"first", queue_id=1)

    def full(fd: int, start: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    making.works.clear()
    monkeypatch.setattr(files, "allocate", full)
    waiting = [asyncio.ensure_future(peer.send("orders", b"%d" % n)) for n in range(3)]
    assert (await peer.send("orders", b"second", queue_id=1)).code == ResponseCode.SUCCESS
    making.works.set()
    answers = await asyncio.gather(*waiting)
    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}


async def test_too_much_that_waits(
    broker: Broker, peer: Peer, making: SlowMaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.send("orders", b"first", queue_id=1)
    monkeypatch.setattr(
        broker.features.waits.files,
        "_pending",
        PendingRequests("a test", replace(PREALLOCATION_WAITS, size_of_one=3000)),
    )
    making.works.clear()
    waiting = [asyncio.ensure_future(peer.send("orders", bytes(1000))) for n in range(3)]
    assert (await waiting[2]).code == ResponseCode.SYSTEM_BUSY
    making.works.set()
    assert {(await send).code for send in waiting[:2]} <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}


async def test_what_waits_when_the_broker_stops_is_stored(
    tmp_path: Path, broker: Broker, peer: Peer, making: SlowMaking
) -> None:
    await peer.send("orders", b"first", queue_id=1)
    making.works.clear()
    waiting = asyncio.ensure_future(peer.send("orders", b"x"))
    assert (await peer.send("orders", b"second", queue_id=1)).code == ResponseCode.SUCCESS
    stopping = asyncio.ensure_future(broker.stop())
    making.works.set()
    assert (await waiting).code == ResponseCode.SUCCESS
    await stopping


async def test_what_is_delivered(peer: Peer, making: SlowMaking) -> None:
    """A delayed message and a timer message are each delivered as the first message of a queue."""
    await peer.send("orders", b"first", queue_id=1)
    for queue_id, properties in enumerate(({"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"})):
        answer = await peer.send("later", b"delayed", queue_id=queue_id, properties=properties)
        assert answer.code == ResponseCode.SUCCESS
        answer = await peer.pull("later", queue_id=queue_id, suspend_ms=10_000)
        assert [message.body for message in decode_messages(answer.body)] == [b"delayed"]
    assert making.threads == {"gantry-preallocation"}


async def test_ends_of_transactions(broker: Broker, making: SlowMaking) -> None:
    producer = await Producer().connect(broker.port)
    half = await producer.prepare("orders", b"paid")
    await producer.send("orders", b"first", queue_id=1)
    making.works.clear()
    end = asyncio.ensure_future(producer.end(half))
    assert (await producer.send("orders", b"second", queue_id=1)).code == ResponseCode.SUCCESS
    assert not end.done()
    making.works.set()
    assert (await end).code == ResponseCode.SUCCESS
    pulled = decode_messages((await producer.pull("orders")).body)
    assert [message.body for message in pulled] == [b"paid"]
    assert making.threads == {"gantry-preallocation"}
    await producer.client.close()


async def test_an_end_of_a_transaction_that_is_dropped_is_in_the_log(
    broker: Broker, making: SlowMaking, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients send the end of a transaction one-way, so they get no error. The log is the only report."""
    set_preallocation_wait(monkeypatch, 0.05)
    producer = await Producer().connect(broker.port)
    half = await producer.prepare("orders", b"paid")
    await producer.send("orders", b"first", queue_id=1)
    making.works.clear()
    header = end_header(half.queue_offset, half.commit_log_offset, TRANSACTION_COMMIT)
    producer.connection.send_oneway(RemotingCommand.request(RequestCode.END_TRANSACTION, header))
    await until(lambda: "one-way request 37 of 127.0.0.1:" in caplog.text)
    assert (
        "is dropped: [OVERLOAD]system busy, start flow control for a while: a file of the store is made" in caplog.text
    )
    making.works.set()
    await producer.client.close()


async def test_what_consumers_give_back(broker: Broker, peer: Peer, making: SlowMaking) -> None:
    await peer.send("orders", b"again")
    (message,) = decode_messages((await peer.pull("orders")).body)
    back = ConsumerSendMsgBackRequestHeader(offset=message.commit_log_offset, group="consumers", delay_level=1)
    dead = ConsumerSendMsgBackRequestHeader(offset=message.commit_log_offset, group="consumers", delay_level=-1)
    making.works.clear()
    waiting = [asyncio.ensure_future(peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)) for header in (back, dead)]
    assert (await peer.send("orders", b"second")).code == ResponseCode.SUCCESS
    await until(lambda: len(making.threads) > 0)
    making.works.set()
    assert [(await answer).code for answer in waiting] == [ResponseCode.SUCCESS] * 2
    (message,) = decode_messages((await peer.pull("%DLQ%consumers")).body)
    assert message.body == b"again"
    assert making.threads == {"gantry-preallocation"}


async def test_replies(peer: Peer, making: SlowMaking) -> None:
    await peer.send("orders", b"first", queue_id=1)
    making.works.clear()
    reply = asyncio.ensure_future(
        peer.send("DefaultCluster_REPLY_TOPIC", b"answer", code=RequestCode.SEND_REPLY_MESSAGE_V2)
    )
    await until(lambda: len(making.threads) > 0)
    making.works.set()
    await reply
    pulled = decode_messages((await peer.pull("DefaultCluster_REPLY_TOPIC")).body)
    assert [message.body for message in pulled] == [b"answer"]
    assert making.threads == {"gantry-preallocation"}


async def test_a_pop_waits_for_the_file_of_its_notes(peer: Peer, making: SlowMaking) -> None:
    """A pop waits for the file of its checkpoint.

    With such a short invisible duration, the checkpoint is written at once.
    """
    await peer.send("orders", b"popped")
    making.threads.clear()
    making.works.clear()
    pop = asyncio.ensure_future(PopPeer(peer.connection).pop("orders", queue_id=0, invisible_ms=3000))
    await until(lambda: len(making.threads) > 0)
    assert (await peer.send("orders", b"second")).code == ResponseCode.SUCCESS
    assert not pop.done()
    making.works.set()
    answer = await pop
    assert [message.body for message in decode_messages(answer.body)] == [b"popped", b"second"]
    assert making.threads == {"gantry-preallocation"}
