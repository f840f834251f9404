"""`SYNC_FLUSH` with a slow disk: `FLUSH_DISK_TIMEOUT` is returned once per message, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_support import Peer, config, requests_in_memory
from slow_disk import SlowDisk
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.errors import RefusalReason, StoreError
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.private_fields import REASON_FIELD

TIMEOUT_MS = 1000


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


@pytest.fixture
async def broker(tmp_path: Path, disk: SlowDisk) -> AsyncIterator[Broker]:
    settings = config(tmp_path / "store")
    settings.store.flush_disk_type = "SYNC_FLUSH"
    settings.store.sync_flush_timeout_ms = TIMEOUT_MS
    settings.send_thread_pool_queue_capacity = 3
    broker = Broker(settings)
    await broker.start()
    yield broker
    disk.works.set()
    await broker.stop()


async def test_slow_disk_is_said_once_and_the_message_is_stored(peer: Peer, disk: SlowDisk) -> None:
    assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
    disk.works.clear()
    late = await asyncio.gather(*(peer.send("orders", b"%d" % n) for n in range(3)))
    assert [(answer.code, answer.ext_fields["queueOffset"]) for answer in late] == [
        (ResponseCode.FLUSH_DISK_TIMEOUT, str(n + 1)) for n in range(3)
    ]
    assert (await peer.send("orders", b"careless", properties={"WAIT": "false"})).code == ResponseCode.SUCCESS
    disk.works.set()
    answer = await peer.send("orders", b"last")
    assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "5")
    pulled = list(decode_messages((await peer.pull("orders")).body))
    assert [message.body for message in pulled] == [b"first", b"0", b"1", b"2", b"careless", b"last"]


async def test_batches_and_half_messages_wait_too(peer: Peer, disk: SlowDisk) -> None:
    await peer.send("orders", b"first")
    disk.works.clear()
    batch = peer.send("orders", encode_batch([(0, b"x", b"")]), code=RequestCode.SEND_BATCH_MESSAGE)
    half = peer.send("orders", b"x", properties={"TRAN_MSG": "true", "PGROUP": "producers"})
    answers = await asyncio.gather(batch, half)
    assert [answer.code for answer in answers] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
    assert answers[1].ext_fields["transactionId"]


async def test_answers_before_the_time_is_up_come_at_once(peer: Peer, disk: SlowDisk) -> None:
    await peer.send("orders", b"first")
    disk.works.clear()
    asyncio.get_running_loop().call_later(TIMEOUT_MS / 3000, disk.works.set)
    assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS


async def test_what_waits_keeps_no_messages(broker: Broker, peer: Peer, disk: SlowDisk) -> None:
    await peer.send("orders", b"first")
    before = requests_in_memory()
    disk.works.clear()
    sends = [asyncio.ensure_future(peer.send("orders", bytes(100_000))) for _ in range(3)]
    await until(lambda: broker.store.queue("orders", 0).max_offset == 4)
    await until(lambda: broker.features.waits.flush.count == 3)
    assert requests_in_memory(before) == []
    disk.works.set()
    assert {(await send).code for send in sends} <= {ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT}


async def test_a_disk_far_behind_makes_the_broker_busy(broker: Broker, peer: Peer, disk: SlowDisk) -> None:
    assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
    disk.works.clear()
    answers = await asyncio.gather(*(peer.send("orders", b"%d" % n) for n in range(5)))
    codes = sorted(answer.code for answer in answers)
    assert codes == sorted([ResponseCode.FLUSH_DISK_TIMEOUT] * 3 + [ResponseCode.SYSTEM_BUSY] * 2)
    disk.works.set()
    assert (await peer.send("orders", b"last")).code == ResponseCode.SUCCESS
    assert [message.body for message in decode_messages((await peer.pull("orders")).body)][-1] == b"last"


async def test_a_message_that_is_given_back_waits_too(peer: Peer, disk: SlowDisk) -> None:
    """A send-back also waits for the disk, because the consumer drops the message after the acknowledgement."""
    sent = await peer.send("orders", b"hard")
    (message,) = decode_messages((await peer.pull("orders")).body)
    header = ConsumerSendMsgBackRequestHeader(offset=message.commit_log_offset, group="consumers", delay_level=-1)
    given_back = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert (sent.code, given_back.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    disk.works.clear()
    again = asyncio.ensure_future(peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header))
    # A later message that needs no flush is acknowledged first.
    await peer.send("orders", b"careless", properties={"WAIT": "false"})
    assert not again.done()
    disk.works.set()
    assert (await again).code == ResponseCode.SUCCESS


async def test_a_message_whose_flush_fails_may_be_stored(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers receive the message, so the producer must not get an error that says that it is not stored."""
    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "when_flushed", lambda end, then: then(StoreError("the disk is gone")))
        answer = await peer.send("orders", b"stored")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "StoreError: the disk is gone")
    assert answer.ext_fields[REASON_FIELD] == RefusalReason.MAY_BE_STORED
    pulled = list(decode_messages((await peer.pull("orders")).body))
    assert [message.body for message in pulled] == [b"stored"]
