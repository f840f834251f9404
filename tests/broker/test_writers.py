"""Idempotent writers: repeated rows are dropped.

This holds after SIGKILL, and for concurrent attempts of one writer.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_store import commit_log
from broker_support import Disk, Peer, config
from replicated_brokers import Replicas
from step_timer import StepTimer, loop_steps
from wait_until import until
from writer_support import TOPIC, Writer, numbered
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import MAX_QUEUE_NUMS
from gantrymq.broker.send.idempotent_writes import FILE_NAME
from gantrymq.broker.send.write_ids import WriteIds, Written
from gantrymq.client.producing.send_command import send_command
from gantrymq.errors import BrokerError, IllegalMessage
from gantrymq.protocol import binary_header
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import GetWriterQueuesRequestHeader, GetWriterQueuesResponseHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.record import Record
from gantrymq.protocol.row_ids import (
    AFTER_FIELD,
    BEGINNING,
    GANTRY_ID,
    GANTRY_SEQ,
    MAX_ID_LENGTH,
    MAX_QUEUES_LENGTH,
    Place,
    decode_place,
    decode_row_id,
)
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.message_store import MessageStore

KEEP_MS = 60_000

BROKER = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
from broker_support import config
from gantrymq.broker.broker import Broker

async def serve():
    broker = Broker(config(Path(sys.argv[2]), flush_consumer_offset_interval=int(sys.argv[3])))
    await broker.start()
    print(broker.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


async def stored(remoting: RemotingClient, port: int, queue_id: int = 0) -> list[bytes]:
    """Returns the bodies in the queue."""
    peer = Peer(await remoting.connection(f"127.0.0.1:{port}"))
    bodies: list[bytes] = []
    while (response := await peer.pull(TOPIC, len(bodies), queue_id=queue_id)).code == ResponseCode.SUCCESS:
        bodies += [message.body for message in decode_messages(response.body)]
    return bodies


# -- ids and the table ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b"w", b"1-2-3", b"-1-2-3", b"w-1-2-x", b"w" * 190 + b"-1-2-3"])
def test_no_row_id(text: bytes) -> None:
    with pytest.raises(IllegalMessage):
        decode_row_id(text)


def test_row_ids() -> None:
    assert decode_row_id(b"0b8d-4f-2-31-400") == ("0b8d-4f-31", 2, 400)
    for place in (BEGINNING, Place(5, 0xFFFFFFFF)):
        assert decode_place(str(place)) == place
    for text in ("", "1", "1:2", "x:00000000", "-2:00000000", "1:0000000g"):
        with pytest.raises(IllegalMessage):
            decode_place(text)


def written(at_ms: int, row: int = 0) -> Written:
    return Written(0, row, 0, 0, at_ms)


def test_table_forgets_the_oldest() -> None:
    table = WriteIds()
    for number in range(3):
        assert table.put(f"t@0@{number}", written(number), 3) is None
    # This writer is active again, so it is not the oldest one.
    assert table.put("t@0@0", written(3, 9), 3) is None
    assert table.put("t@0@3", written(4), 3) == written(1)
    assert list(table.ranges) == ["t@0@2", "t@0@0", "t@0@3"]
    assert table.forget(3) == 1
    assert list(table.ranges) == ["t@0@0", "t@0@3"]
    # The limit becomes lower.
    assert table.put("t@0@4", written(5), 1) == written(4)
    assert list(table.ranges) == ["t@0@4"]


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_full_table_forgets_the_oldest_at_once() -> None:
    """A dict searches for its first entry among all entries that were removed before it."""
    most, new = 100_000, 40_000
    table, timer = WriteIds(ranges={f"t@0@{n}": Written(1, 1, 0, n, n) for n in range(most)}), StepTimer()
    with timer.step():
        for n in range(most, most + new):
            table.put(f"t@0@{n}", Written(1, 1, 0, n, n), most)
    assert next(iter(table.ranges)) == f"t@0@{new}"
    assert timer.longest < 0.5


async def test_rows_that_are_sent_again(broker: Broker, remoting: RemotingClient) -> None:
    first, again = Writer(remoting, broker.port), Writer(remoting, broker.port)
    answers = [await first.send(numbered(0, 1, 2)), await first.send(numbered(6, 7))]
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "3"]
    assert [answer.ext_fields["gantryLastRow"] for answer in answers] == ["2", "7"]
    older, last = await again.send(numbered(0, 1, 2)), await again.send(numbered(6, 7))
    # For the last request, the table also has the queue offset and the message ids.
    assert older.ext_fields["queueOffset"] == "-1"
    assert last.ext_fields == answers[1].ext_fields
    assert [older.ext_fields["gantryLastRow"], last.ext_fields["gantryLastRow"]] == ["7", "7"]
    _, offset = decode_offset_message_id(last.ext_fields["msgId"].split(",")[1])
    assert broker.store.read_record(offset).body == b"7"
    # The second attempt continues, and the first one is late.
    assert (await again.send(numbered(8))).ext_fields["queueOffset"] == "5"
    assert (await first.send(numbered(8))).ext_fields["queueOffset"] == "5"
    assert await stored(remoting, broker.port) == [b"0", b"1", b"2", b"6", b"7", b"8"]


async def queues_of(remoting: RemotingClient, port: int, writer: str = "w-7", batch: int = 0) -> str | None:
    header = GetWriterQueuesRequestHeader(topic=TOPIC, writer=writer, batch=batch)
    response = await remoting.call(
        f"127.0.0.1:{port}", RemotingCommand.request(RequestCode.GET_WRITER_QUEUES, header), 20_000
    )
    return response.read_header(GetWriterQueuesResponseHeader).queues


async def test_the_queues_of_a_batch(tmp_path: Path, remoting: RemotingClient) -> None:
    listed = "broker-a:2;broker-b:2"
    broker = Broker(config(tmp_path))
    await broker.start()
    assert await queues_of(remoting, broker.port) is None
    writer = Writer(remoting, broker.port, queue_id=1, queues=listed)
    await writer.send(numbered(0, 1))
    await writer.send(numbered(5))
    await Writer(remoting, broker.port, writer="w-8").send(numbered(0))
    assert await queues_of(remoting, broker.port) == listed
    # Another batch can go to other queues, and a writer without a list of queues sets no restriction.
    assert await queues_of(remoting, broker.port, batch=1) is None
    assert await queues_of(remoting, broker.port, writer="w-8") is None
    other = Writer(remoting, broker.port, queue_id=1, queues="broker-a:2")
    assert (await other.send(numbered(0, 1))).code == ResponseCode.ILLEGAL_OPERATION
    await broker.stop()
    broker = Broker(config(tmp_path))
    await broker.start()
    assert await queues_of(remoting, broker.port) == listed
    long = Writer(remoting, broker.port, writer="w-9", queues="b" * (MAX_QUEUES_LENGTH + 1))
    assert (await long.send(numbered(0))).code == ResponseCode.SUCCESS
    assert await queues_of(remoting, broker.port, writer="w-9") is None
    await broker.stop()


@pytest.mark.parametrize("queues", ["x", ";", "a:", ":4", "a:4;", "a:4;;b:4", "a:123456", "a:-1", "\x00", "a:٣"])
async def test_a_list_of_queues_that_is_none_is_ignored(broker: Broker, remoting: RemotingClient, queues: str) -> None:
    assert (await Writer(remoting, broker.port, queues=queues).send(numbered(0))).code == ResponseCode.SUCCESS
    assert await queues_of(remoting, broker.port) is None
    other = Writer(remoting, broker.port, queues="broker-a:2")
    assert (await other.send(numbered(0))).code == ResponseCode.SUCCESS


async def test_the_queues_of_a_batch_in_a_topic_with_65536_queues(broker: Broker, remoting: RemotingClient) -> None:
    header = CreateTopicRequestHeader(
        topic=TOPIC, default_topic="TBW102", read_queue_nums=MAX_QUEUE_NUMS, write_queue_nums=MAX_QUEUE_NUMS, perm=6
    )
    address = f"127.0.0.1:{broker.port}"
    await remoting.call(address, RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))
    listed = f"broker-a:{MAX_QUEUE_NUMS}"
    await Writer(remoting, broker.port, queue_id=MAX_QUEUE_NUMS - 1, queues=listed).send(numbered(0))
    async with loop_steps() as timer:
        assert await asyncio.gather(*(queues_of(remoting, broker.port) for _ in range(20))) == [listed] * 20
    # All 20 requests take about 1 s.
    assert timer.longest < 0.1
    with pytest.raises(BrokerError) as refused:
        await queues_of(remoting, broker.port, writer="w" * MAX_ID_LENGTH + "-0")
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


async def test_a_request_with_some_known_rows(broker: Broker, remoting: RemotingClient) -> None:
    await Writer(remoting, broker.port).send(numbered(0, 1, 2))
    answer = await Writer(remoting, broker.port).send(numbered(0, 1, 2, 3, 4))
    assert answer.ext_fields["gantryLastRow"] == "4"
    assert await stored(remoting, broker.port) == [b"0", b"1", b"2", b"3", b"4"]


async def test_batches_and_writers_are_told_apart(broker: Broker, remoting: RemotingClient) -> None:
    for batch in (3, 4):
        await Writer(remoting, broker.port, batch=batch).send(numbered(0))
    for queue_id, writer in ((0, "w-8"), (0, "v-7"), (1, "w-7")):
        await Writer(remoting, broker.port, writer=writer, batch=3, queue_id=queue_id).send(numbered(0))
    assert len(await stored(remoting, broker.port)) == 4
    assert len(await stored(remoting, broker.port, 1)) == 1
    old = await Writer(remoting, broker.port, batch=3).send(numbered(0))
    assert old.code == ResponseCode.ILLEGAL_OPERATION
    assert "batch 3 of the writer w-7 comes after its batch 4" in str(old.remark)


@pytest.mark.parametrize(
    ("requests", "refused"),
    [
        # The last request is repeated with a different row.
        ([[(0, b"0"), (1, b"x")]], 0),
        # An earlier request has a different row, which the chain of the last one shows.
        ([[(0, b"x")], [(1, b"1")]], 1),
        # The last row of the chain is not in this queue.
        ([[(0, b"0")], [(2, b"2")]], 1),
        ([[(0, b"0"), (2, b"2")]], 0),
    ],
)
async def test_other_rows_than_before(
    broker: Broker, remoting: RemotingClient, requests: list[list[tuple[int, bytes]]], refused: int
) -> None:
    await Writer(remoting, broker.port).send(numbered(0, 1))
    again = Writer(remoting, broker.port)
    answers = [await again.send(rows) for rows in requests]
    assert answers[refused].code == ResponseCode.ILLEGAL_OPERATION
    assert "other rows, or in another order" in str(answers[refused].remark)
    assert await stored(remoting, broker.port) == [b"0", b"1"]


async def test_rows_that_the_broker_has_lost(broker: Broker, remoting: RemotingClient) -> None:
    await Writer(remoting, broker.port).send(numbered(0, 1))
    late = Writer(remoting, broker.port)
    late.command(numbered(0, 1, 2))
    answer = await late.send(numbered(3))
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "has lost some" in str(answer.remark)


@pytest.mark.parametrize("batch", [0, 1], ids=["all that it wrote", "all of this batch"])
async def test_a_broker_that_has_lost_all_rows_so_far(broker: Broker, remoting: RemotingClient, batch: int) -> None:
    """All rows were lost in a power failure after they were acknowledged.

    The writer continues, so the broker must detect the gap.
    """
    for earlier in range(batch):
        await Writer(remoting, broker.port, batch=earlier).send(numbered(0, 1))
    late = Writer(remoting, broker.port, batch=batch)
    late.command(numbered(0, 1, 2))
    answer = await late.send(numbered(3))
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "has lost some" in str(answer.remark)
    assert len(await stored(remoting, broker.port)) == 2 * batch


async def test_a_writer_that_made_room_for_others_goes_on(tmp_path: Path, remoting: RemotingClient) -> None:
    """A writer whose table entry was evicted can continue, because its rows are stored."""
    broker = await started(tmp_path, idempotent_writer_max_num=1)
    first = Writer(remoting, broker.port)
    await first.send(numbered(0))
    await Writer(remoting, broker.port, writer="other-1").send(numbered(0))
    assert (await first.send(numbered(1))).code == ResponseCode.SUCCESS
    await broker.stop()


async def test_a_row_without_a_number_between_others(broker: Broker, remoting: RemotingClient) -> None:
    await Writer(remoting, broker.port).send(numbered(0, 1))
    again = Writer(remoting, broker.port)
    command = again.command(numbered(0, 1, 2))
    command.body = command.body.replace(b"w-0-7-1\x02", b"w-0-7-x\x02")
    answer = await remoting.invoke(again.address, command, 20_000)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_who_doesnt_ask_for_it_isnt_held_to_it(broker: Broker, remoting: RemotingClient) -> None:
    """Rows are dropped as duplicates only if the request contains `AFTER_FIELD`.

    A consumer that forwards messages also copies their write ids.
    """
    for _ in range(2):
        command = Writer(remoting, broker.port).command(numbered(0, 1))
        command.raw_ext = command.raw_ext[: command.raw_ext.index(AFTER_FIELD.encode()) - 2]
        answer = await remoting.invoke(f"127.0.0.1:{broker.port}", command, 20_000)
        assert answer.code == ResponseCode.SUCCESS
        assert "gantryLastRow" not in answer.ext_fields
    assert len(await stored(remoting, broker.port)) == 4
    assert not len(broker.writers)


async def test_what_is_no_part_of_a_writers_rows(broker: Broker, remoting: RemotingClient) -> None:
    behind = Writer(remoting, broker.port)
    behind.after = Place(3, 0)
    elsewhere = Writer(remoting, broker.port)
    commands = [behind.command(numbered(3)), elsewhere.command(numbered(2, 1)), elsewhere.command(numbered(3))]
    # This request was encoded for queue 0.
    commands[2].raw_ext = commands[2].raw_ext.replace(b"\x00\x01e\x00\x00\x00\x010", b"\x00\x01e\x00\x00\x00\x011")
    commands.append(send_command("g", behind.queue, encode_batch([(0, b"x", b"")]), b"", 1, batch=True))
    commands[3].raw_ext += binary_header.encode_fields({AFTER_FIELD: str(BEGINNING)})
    for command in commands:
        answer = await remoting.invoke(f"127.0.0.1:{broker.port}", command, 20_000)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert await stored(remoting, broker.port) == []


async def test_copies_at_the_same_time(broker: Broker, remoting: RemotingClient) -> None:
    """Two writers have two attempts each. Their requests have random sizes and arrive in random order."""
    rng = random.Random(7)

    async def attempt(writer: str, other: RemotingClient) -> None:
        sender, row = Writer(other, broker.port, writer=writer), 0
        while row < 200:
            count = rng.randrange(1, 12)
            answer = await sender.send([(n, f"{writer} {n}".encode()) for n in range(row, min(row + count, 200))])
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            row += count
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)

    others = [RemotingClient() for _ in range(4)]
    try:
        await asyncio.gather(*(attempt(f"w-{n % 2}", other) for n, other in enumerate(others)))
    finally:
        for other in others:
            await other.close()
    bodies = await stored(remoting, broker.port)
    for writer in ("w-0", "w-1"):
        assert [body for body in bodies if body.startswith(writer.encode())] == [
            f"{writer} {n}".encode() for n in range(200)
        ]
    assert len(bodies) == 400


async def test_rows_that_are_not_on_the_disk_yet(tmp_path: Path, remoting: RemotingClient) -> None:
    """With `SYNC_FLUSH`, a repeated request is answered only when its rows are on disk."""
    settings = config(tmp_path)
    settings.store.flush_disk_type = "SYNC_FLUSH"
    broker = Broker(settings)
    await broker.start()
    # The first rows of all wait for the table's file. This send creates it.
    await Writer(remoting, broker.port, queue_id=1).send(numbered(0))
    may_flush = threading.Event()
    log = commit_log(broker.store)
    flush = log.flush

    def flush_later() -> None:
        assert may_flush.wait(20)
        flush()

    log.flush = flush_later  # type: ignore[method-assign]
    try:
        sent = [asyncio.ensure_future(Writer(remoting, broker.port).send(numbered(0, 1))) for _ in range(2)]
        queue = broker.store.queue(TOPIC, 0)
        await until(lambda: queue.max_offset == 2 and broker.features.waits.flush.count == 2)
        assert not any(answer.done() for answer in sent)
        may_flush.set()
        answers = await asyncio.gather(*sent)
        assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "0"]
        assert queue.max_offset == 2
    finally:
        may_flush.set()
        await broker.stop()


async def test_a_topic_that_was_made_anew(broker: Broker, remoting: RemotingClient) -> None:
    await Writer(remoting, broker.port).send(numbered(0, 1))
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    delete = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=TOPIC))
    assert delete.code == ResponseCode.SUCCESS
    assert not len(broker.writers)
    await peer.send(TOPIC, b"other")
    await peer.send(TOPIC, b"other")
    await Writer(remoting, broker.port).send(numbered(0, 1))
    assert await stored(remoting, broker.port) == [b"other", b"other", b"0", b"1"]


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_a_topic_that_was_made_anew_and_lost_its_beginning(broker: Broker, remoting: RemotingClient) -> None:
    """The broker cannot find out if the rows were stored in a deleted topic, so it stores them again."""
    await Writer(remoting, broker.port).send(numbered(0, 1))
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    delete = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=TOPIC))
    assert delete.code == ResponseCode.SUCCESS
    for _ in range(3):
        await peer.send(TOPIC, b"other")
    queue = broker.store.queue(TOPIC, 0)
    queue.min_offset = queue.log_min_offset = 3
    assert (await Writer(remoting, broker.port).send(numbered(0, 1))).code == ResponseCode.SUCCESS
    assert queue.max_offset == 5


async def test_a_topic_that_was_made_anew_after_a_restart_and_has_expired(
    tmp_path: Path, remoting: RemotingClient
) -> None:
    """The log still has the rows at the offsets of the writer's rows, so the broker compares them."""
    broker = Broker(config(tmp_path))
    await broker.start()
    await Writer(remoting, broker.port).send(numbered(0, 1))
    await broker.stop()
    broker = Broker(config(tmp_path))
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    delete = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=TOPIC))
    assert delete.code == ResponseCode.SUCCESS
    for _ in range(3):
        await peer.send(TOPIC, b"other")
    queue = broker.store.queue(TOPIC, 0)
    queue.expire_before(3)
    assert (await Writer(remoting, broker.port).send(numbered(0, 1))).code == ResponseCode.SUCCESS
    assert queue.max_offset == 5
    await broker.stop()


async def run_broker(root: Path, saved_every_ms: int) -> tuple[asyncio.subprocess.Process, int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        BROKER,
        str(Path(__file__).parent),
        str(root),
        str(saved_every_ms),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    return process, int(await asyncio.wait_for(process.stdout.readline(), 30))


@pytest.mark.parametrize("saved_every_ms", [20, 60_000], ids=["with a new table", "with the empty table"])
async def test_a_broker_killed_before_it_answers(tmp_path: Path, remoting: RemotingClient, saved_every_ms: int) -> None:
    process, port = await run_broker(tmp_path, saved_every_ms)
    sent: list[tuple[int, list[tuple[int, bytes]]]] = []
    try:
        writers = [Writer(remoting, port, queue_id=queue_id) for queue_id in range(3)]
        answers = {}
        for start in range(0, 120, 10):
            queue_id = start // 10 % 3
            sent.append((queue_id, numbered(*range(start, start + 10))))
            answers[start] = await writers[queue_id].send(sent[-1][1])
        connection = await remoting.connection(f"127.0.0.1:{port}")
        # The last requests reach the broker, but their responses are lost.
        for start in range(120, 150, 10):
            queue_id = start // 10 % 3
            sent.append((queue_id, numbered(*range(start, start + 10))))
            await connection.invoke_oneway(writers[queue_id].command(sent[-1][1]), 5000)
        peer = Peer(connection)
        for queue_id in range(3):

            async def has_all(queue_id: int = queue_id) -> bool:
                return (await peer.pull(TOPIC, 49, queue_id=queue_id)).code == ResponseCode.SUCCESS

            await until(has_all)
    finally:
        process.kill()
        await process.wait()
    process, port = await run_broker(tmp_path, saved_every_ms)
    try:
        again = [Writer(remoting, port, queue_id=queue_id) for queue_id in range(3)]
        repeated = [await again[queue_id].send(rows) for queue_id, rows in sent]
        assert [answer.code for answer in repeated] == [ResponseCode.SUCCESS] * len(sent)
        assert [answer.ext_fields["queueOffset"] for answer in repeated[-3:]] == ["40", "40", "40"]
        for queue_id in range(3):
            assert (await again[queue_id].send(numbered(400))).ext_fields["queueOffset"] == "50"
            wanted = [body for of, rows in sent for _, body in rows if of == queue_id] + [b"400"]
            assert await stored(remoting, port, queue_id) == wanted
    finally:
        process.kill()
        await process.wait()


async def started(root: Path, **changed: int) -> Broker:
    broker = Broker(config(root, **changed))
    await broker.start()
    return broker


@pytest.mark.parametrize("what", ["damaged", "of another log", "ahead of the log"])
async def test_a_file_that_is_no_good_is_made_from_the_log(tmp_path: Path, remoting: RemotingClient, what: str) -> None:
    broker = await started(tmp_path)
    await Writer(remoting, broker.port).send(numbered(0, 1))
    await broker.stop()
    path = tmp_path / "config" / FILE_NAME
    path.with_name(path.name + ".bak").unlink()
    position = {"of another log": 77, "ahead of the log": 1 << 40}.get(what)
    path.write_text("{" if position is None else f'{{"position":{position},"ranges":{{}}}}')
    for _ in range(2):
        broker = await started(tmp_path)
        assert len(broker.writers) == 1
        await Writer(remoting, broker.port).send(numbered(0, 1))
        assert await stored(remoting, broker.port) == [b"0", b"1"]
        await broker.stop()


class LongLog(asyncio.Event):
    """Set when the log may be read to its end. Each read first raises one of `failures`."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = []


@pytest.fixture
def long_log(monkeypatch: pytest.MonkeyPatch) -> LongLog:
    """Brokers that start after this do not finish reading their log until the event is set."""
    is_read = LongLog()
    look_for_records = MessageStore.look_for_records

    def slowly(store: MessageStore, mark: bytes, start: int) -> Iterator[Record | None]:
        while not is_read.is_set():
            yield None
        if is_read.failures:
            raise is_read.failures.pop()
        yield from look_for_records(store, mark, start)

    monkeypatch.setattr(MessageStore, "look_for_records", slowly)
    return is_read


async def test_a_broker_serves_while_it_reads_its_log(
    tmp_path: Path, remoting: RemotingClient, long_log: LongLog
) -> None:
    """Requests with write ids wait until the table is complete."""
    long_log.set()
    broker = await started(tmp_path)
    await Writer(remoting, broker.port).send(numbered(0, 1))
    await broker.stop()
    path = tmp_path / "config" / FILE_NAME
    path.write_text(f'{{"position":{1 << 40},"ranges":{{}}}}')
    long_log.clear()
    broker = await started(tmp_path)
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    waiting = asyncio.ensure_future(Writer(remoting, broker.port).send(numbered(0, 1)))
    assert (await peer.send(TOPIC, b"x", queue_id=1)).code == ResponseCode.SUCCESS
    assert not waiting.done()
    # This is the state on disk in case the broker is killed at this moment.
    assert path.read_text() == '{"position":0,"ranges":{}}'
    long_log.set()
    assert (await waiting).code == ResponseCode.SUCCESS
    assert await stored(remoting, broker.port) == [b"0", b"1"]
    await broker.stop()


async def test_who_waits_for_a_long_log_comes_again(
    tmp_path: Path, remoting: RemotingClient, long_log: LongLog
) -> None:
    long_log.set()
    broker = await started(tmp_path)
    await Writer(remoting, broker.port).send(numbered(0))
    await broker.stop()
    long_log.clear()
    broker = await started(tmp_path)
    answer = await Writer(remoting, broker.port).send(numbered(0))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "still reads in its log what idempotent writers have written" in (answer.remark or "")
    # An incomplete table must not be saved.
    before = (tmp_path / "config" / FILE_NAME).read_text()
    await broker.stop()
    assert (tmp_path / "config" / FILE_NAME).read_text() == before


async def test_the_log_is_read_anew_when_that_has_failed(
    tmp_path: Path, remoting: RemotingClient, long_log: LongLog
) -> None:
    long_log.set()
    broker = await started(tmp_path)
    await Writer(remoting, broker.port).send(numbered(0))
    await broker.stop()
    (tmp_path / "config" / FILE_NAME).write_text('{"position":0,"ranges":{}}')
    long_log.clear()
    broker = await started(tmp_path)
    reading = broker.jobs.find("read what idempotent writers have written")
    long_log.failures.append(RuntimeError("once"))
    long_log.set()
    sending = asyncio.ensure_future(Writer(remoting, broker.port).send(numbered(0)))
    await until(lambda: reading.report.failures == 1)
    # The broker would wait for 10 s before it tries again.
    reading.wake()
    assert (await sending).code == ResponseCode.SUCCESS
    assert await stored(remoting, broker.port) == [b"0"]
    await broker.stop()


async def test_a_slave_that_becomes_the_master_knows_what_was_written(tmp_path: Path, remoting: RemotingClient) -> None:
    """A new master detects repeated rows from its log.

    It has the log of another master, and no table.
    """
    broker = await started(tmp_path)
    await Writer(remoting, broker.port).send(numbered(0, 1))
    await broker.writers.become_slave()
    await broker.stop()
    for file in (tmp_path / "config").glob(f"{FILE_NAME}*"):
        file.unlink()
    for n in range(2):
        broker = await started(tmp_path)
        if not n:
            await broker.writers.become_slave()
            await broker.writers.become_master()
            await until((tmp_path / "config" / FILE_NAME).exists)
        await Writer(remoting, broker.port).send(numbered(0, 1))
        assert await stored(remoting, broker.port) == [b"0", b"1"]
        await broker.writers.become_slave()
        await broker.writers.become_master()
        await broker.stop()


async def test_a_slave_that_is_started_as_master_knows_what_was_written(
    tmp_path: Path, remoting: RemotingClient
) -> None:
    """Without a controller, an administrator changes the configuration of the slave and starts it again."""
    async with Replicas(tmp_path) as replicas:
        assert (await Writer(remoting, replicas.master.port).send(numbered(0, 1))).code == ResponseCode.SUCCESS
    broker = await started(tmp_path / "1")
    assert (await Writer(remoting, broker.port).send(numbered(0, 1))).code == ResponseCode.SUCCESS
    assert await stored(remoting, broker.port) == [b"0", b"1"]
    await broker.stop()


async def test_a_damaged_row_doesnt_hide_those_behind_it(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = await started(tmp_path)
    await Writer(remoting, broker.port, writer="w-1").send([(0, b"damaged")])
    await Writer(remoting, broker.port, writer="w-2").send(numbered(0))
    await broker.stop()
    log_file = next((tmp_path / "commitlog").iterdir())
    log_file.write_bytes(log_file.read_bytes().replace(b"damaged", b"DAMAGED"))
    (tmp_path / "config" / FILE_NAME).write_text('{"position":0,"ranges":{}}')
    broker = await started(tmp_path)
    assert set(broker.writers.table.ranges) == {"rows@0@w-2"}
    await broker.stop()


async def test_copies_elsewhere_in_the_log_count_for_nothing(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = await started(tmp_path)
    await Writer(remoting, broker.port).send(numbered(0))
    record = next(broker.store.records_with(b"GANTRY_SEQ", 0))
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    properties = {GANTRY_ID: "w-0-7-500", GANTRY_SEQ: record.properties.split(b"GANTRY_SEQ\x01")[1][:16].decode()}
    # Copies of write ids: a message forwarded to another queue, and a body that looks like a record.
    await peer.send(TOPIC, record.properties, queue_id=1, properties=properties)
    await broker.stop()
    (tmp_path / "config" / FILE_NAME).write_text('{"position":0,"ranges":{}}')
    broker = await started(tmp_path)
    assert len(broker.writers) == 1
    await Writer(remoting, broker.port, queue_id=1).send(numbered(1))
    assert len(await stored(remoting, broker.port, 1)) == 2
    await broker.stop()


async def test_writers_are_kept_for_a_time(tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock) -> None:
    broker = await started(tmp_path, idempotent_writer_keep_time=KEEP_MS, idempotent_writer_max_num=2)
    for number in range(3):
        await Writer(remoting, broker.port, writer=f"w-{number}").send(numbered(0))
    assert len(broker.writers) == 2
    await broker.stop()
    wrong_clock.ahead_s = KEEP_MS / 1000 + 1
    broker = await started(tmp_path, idempotent_writer_keep_time=KEEP_MS)
    assert not len(broker.writers)
    await broker.stop()


async def test_the_loop_doesnt_wait_for_the_file(broker: Broker, remoting: RemotingClient, disk: Disk) -> None:
    """The event loop does not wait for the table's file.

    Only the first rows wait: the file is on disk before they are stored.
    """
    saved: list[tuple[threading.Thread, int]] = []
    queue = broker.store.queue(TOPIC, 0)

    def note(file: str) -> None:
        if file == FILE_NAME:
            saved.append((threading.current_thread(), queue.max_offset))

    disk.before_write = note
    writers = [Writer(remoting, broker.port, writer=f"w-{number}") for number in range(3)]
    answers = await asyncio.gather(*(writer.send(numbered(0)) for writer in writers))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert len(await stored(remoting, broker.port)) == 3
    thread, stored_by_then = saved[0]
    assert thread is not threading.main_thread()
    assert stored_by_then == 0


async def test_a_broker_without_such_writers_has_no_file(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = await started(tmp_path)
    await Peer(await remoting.connection(f"127.0.0.1:{broker.port}")).send(TOPIC, b"x")
    await broker.stop()
    assert not (tmp_path / "config" / FILE_NAME).exists()


async def test_the_log_goes_on_in_its_next_file(tmp_path: Path, remoting: RemotingClient) -> None:
    """The table is saved when the log is near the end of a file, which is then padded with a blank record."""
    broker = await started(tmp_path)
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await peer.send(TOPIC, bytes(3 * 1024 * 1024), queue_id=3)
    await Writer(remoting, broker.port).send(numbered(0, 1))
    await broker.stop()
    broker = await started(tmp_path)
    assert broker.store.max_physical_offset < 4 * 1024 * 1024
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    path = tmp_path / "config" / FILE_NAME
    before = path.read_text()
    await peer.send(TOPIC, bytes(3 * 1024 * 1024), queue_id=3)
    again = Writer(remoting, broker.port)
    await again.send(numbered(0, 1))
    await again.send(numbered(2))
    await broker.stop()
    path.write_text(before)
    broker = await started(tmp_path)
    assert broker.writers.table.ranges["rows@0@w-7"].row == 2
    assert broker.store.max_physical_offset > 4 * 1024 * 1024
    await broker.stop()


async def test_a_start_reads_only_the_log_of_the_time_for_which_writers_are_kept(
    tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await started(tmp_path)
    await Writer(remoting, broker.port).send(numbered(0))
    await broker.stop()
    path = tmp_path / "config" / FILE_NAME
    before = path.read_text()
    for ahead_s in (0, KEEP_MS / 1000 + 1):
        wrong_clock.ahead_s = ahead_s
        broker = await started(tmp_path, idempotent_writer_keep_time=KEEP_MS)
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        for _ in range(2):
            await peer.send(TOPIC, bytes(3 * 1024 * 1024), queue_id=3)
        await broker.stop()
    path.write_text(before)
    starts = []
    look = MessageStore.look_for_records

    def noting(store: MessageStore, mark: bytes, start: int) -> Iterator[Record | None]:
        starts.append(start)
        return look(store, mark, start)

    monkeypatch.setattr(MessageStore, "look_for_records", noting)
    broker = await started(tmp_path, idempotent_writer_keep_time=KEEP_MS)
    # Each file of the log has one message of 3 MiB. The second is the last one that begins before the kept time.
    assert starts == [1 * 4 * 1024 * 1024]
    assert not len(broker.writers)
    await broker.stop()
