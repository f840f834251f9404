"""The fuzz targets: each decodes one input, and raises anything but the decoder's documented error if it finds a fault.

To add a target, write a function with the decorator `target`, and put one valid input into `fuzz/corpus/NAME`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from gantrymq.config import format_properties, parse_properties
from gantrymq.errors import (
    BodyError,
    ClientError,
    ConfigError,
    FrameError,
    GantryError,
    HeaderError,
    IllegalMessage,
    ProtocolError,
    RecordError,
    StoreError,
)
from gantrymq.filter.sql import compile_sql
from gantrymq.kernels import native
from gantrymq.protocol.batch import decode_batch, encode_batch
from gantrymq.protocol.bodies.consumer import ConsumerRunningInfo
from gantrymq.protocol.bodies.heartbeat import HeartbeatData
from gantrymq.protocol.bodies.queue_map import decode_with_queue_maps
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, decode_request_json, encode_json
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.headers.send import SendMessageRequestHeader
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import decode_properties, encode_properties, find_property
from gantrymq.protocol.pull_request import decode_pull_request
from gantrymq.protocol.recall_handle import decode_recall_handle
from gantrymq.protocol.receipt_handle import ReceiptHandle, parse_offset_info
from gantrymq.protocol.record import decode_record, encode_again, encode_host
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.proxy.http2.hpack import HpackDecoder, HpackError, TooManyHeaders
from gantrymq.replication.autoswitch_frames import AutoSwitchFrameReader, AutoSwitchReportReader
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.epochs import Epochs
from gantrymq.replication.frames import FrameReader as HaFrameReader
from gantrymq.replication.frames import ReportReader
from gantrymq.store.checkpoint import load_checkpoint
from gantrymq.store.config import StoreConfig
from gantrymq.store.json_config import JsonConfigFile
from gantrymq.store.message_store import MessageStore
from gantrymq.store.timer_checkpoint import load_timer_checkpoint
from gantrymq.store.timer_store import TimerStore

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}
_JSON_TYPES: tuple[Any, ...] = (HeartbeatData, TopicRouteData, SubscriptionGroupConfig, dict[str, Any])


def target(function: Target) -> Target:
    TARGETS[function.__name__] = function
    return function


@target
def frames(data: bytes) -> None:
    """Remoting frames and their headers, JSON and binary. Commands that were decoded are encoded and decoded again."""
    commands: list[RemotingCommand] = []
    with contextlib.suppress(FrameError, HeaderError):
        commands.extend(FrameReader().feed(data))
    halves: list[RemotingCommand] = []
    reader = FrameReader()
    with contextlib.suppress(FrameError, HeaderError):
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            halves.extend(reader.feed(piece))
    assert len(halves) == len(commands), "the stream decodes differently if it is cut"
    for command in commands:
        for decode in (
            decode_send_request,
            decode_pull_request,
            lambda each: each.read_header(SendMessageRequestHeader),
            lambda each: each.read_header(PullMessageRequestHeader),
        ):
            with contextlib.suppress(HeaderError):
                decode(command)
        try:
            fields = command.ext_fields
            encoded = command.encode()
        except HeaderError:
            continue
        (again,) = FrameReader().feed(encoded)
        assert again.ext_fields == fields
        assert (again.code, again.opaque, again.body) == (command.code, command.opaque, command.body)


@target
def records(data: bytes) -> None:
    """A record of the commit log, by native code and by Python."""
    with contextlib.suppress(RecordError):
        record = decode_record(data)
        assert decode_record(encode_again(record)).body == record.body
    if native is None:
        return
    for size, queue_offset, sys_flag, _, body, properties in native.pulled_records(data, 0, b"orders", 1, -1):
        record = decode_record(data)
        found = (record.size, record.queue_offset, record.sys_flag, record.body, record.properties)
        assert found == (size, queue_offset, sys_flag, body, properties), "native code and Python disagree"
        break


@target
def batches(data: bytes) -> None:
    """The body of a batch send."""
    with contextlib.suppress(BodyError):
        messages = list(decode_batch(data))
        assert list(decode_batch(encode_batch(messages))) == messages


@target
def properties(data: bytes) -> None:
    """The properties of a message."""
    found = decode_properties(data)
    with contextlib.suppress(IllegalMessage):
        assert decode_properties(encode_properties(found)) == found
    find_property(data, b"KEYS")


@target
def sql92(data: bytes) -> None:
    """A filter expression, and the properties of a message after the first line feed."""
    text, _, of_message = data.partition(b"\n")
    with contextlib.suppress(ClientError):
        compile_sql(text.decode(errors="replace"))(of_message)


@target
def json_bodies(data: bytes) -> None:
    """JSON of fastjson: several types of bodies. Values that were decoded are encoded and decoded again."""
    for json_type in _JSON_TYPES:
        with contextlib.suppress(BodyError):
            decode_request_json(data, json_type)
            value = decode_json(data, json_type)
            assert decode_json(encode_json(value), json_type) == value
    with contextlib.suppress(BodyError):
        decode_with_queue_maps(data, ConsumerRunningInfo)


@target
def handles(data: bytes) -> None:
    """Receipt handles, recall handles, message ids and the offsets of a pop, as text of a client."""
    text = data.decode(errors="replace")
    decoders: tuple[Callable[[str], object], ...] = (ReceiptHandle.parse, parse_offset_info, decode_offset_message_id)
    for decode in decoders:
        with contextlib.suppress(ProtocolError):
            decode(text)
    with contextlib.suppress(IllegalMessage):
        decode_recall_handle(text)


@target
def configuration(data: bytes) -> None:
    """A file of Java's properties."""
    with contextlib.suppress(ConfigError):
        found = parse_properties(data.decode(errors="replace"), source="input")
        assert parse_properties(format_properties(found), source="output") == found


@target
def ha_streams(data: bytes) -> None:
    """The streams between master and slave, in both directions and both protocols."""
    for reader in (HaFrameReader(), AutoSwitchFrameReader()):
        with contextlib.suppress(FrameError):
            reader.feed(data)
            while reader.next() is not None:
                pass
    for reports in (ReportReader(), AutoSwitchReportReader()):
        with contextlib.suppress(FrameError):
            reports.feed(data)


@target
def hpack(data: bytes) -> None:
    """A header block of HTTP/2."""
    with contextlib.suppress(HpackError, TooManyHeaders):
        HpackDecoder().decode(data, 8192)


@target
def small_files(data: bytes) -> None:
    """Checkpoints and a JSON file of the configuration."""
    with tempfile.TemporaryDirectory(prefix="gantry-fuzz-") as directory:
        path = Path(directory) / "file"
        path.write_bytes(data)
        load_checkpoint(path)
        load_timer_checkpoint(path, 1 << 50)
        with contextlib.suppress(StoreError):
            JsonConfigFile(path).load()


@target
def epoch_file(data: bytes) -> None:
    """The file with the epochs of a log. Epochs that were decoded are encoded and decoded again."""
    with tempfile.TemporaryDirectory(prefix="gantry-fuzz-") as directory:
        (Path(directory) / "epochFileCheckpoint").write_bytes(data)
        file = EpochFile(Path(directory))
        with contextlib.suppress(StoreError):
            file.load(1 << 40)
        assert Epochs.decode(file.epochs.encode()).all() == file.epochs.all()


#: A time in a slot at the beginning of the wheel's first page with data, and its file.
_TIMER_MS, _WHEEL = 1_700_000_000_000, "timerwheel"


@target
def timer_files(data: bytes) -> None:
    """The timer's checkpoint, log and wheel with changes. If they open, they must not lose a message that is added.

    The changes are those of `recovery`. Positions in the wheel count from its first page with data.
    """
    with tempfile.TemporaryDirectory(prefix="gantry-fuzz-") as directory:
        root = Path(directory) / "store"
        good = Path(_good_timer().name) / "store"
        shutil.copytree(good, root, ignore=shutil.ignore_patterns(_WHEEL))
        with (good / _WHEEL).open("rb") as wheel:
            first = os.lseek(wheel.fileno(), 0, os.SEEK_DATA)
            wheel.seek(first)
            slots = wheel.read(4096)
            size = wheel.seek(0, os.SEEK_END)
        page = root / _WHEEL
        page.write_bytes(slots)
        change(root, data)
        slots = page.read_bytes()[:4096]
        with page.open("wb") as wheel:
            wheel.truncate(size)
            wheel.seek(first)
            wheel.write(slots)
        timer = _timer(root)
        try:
            timer.open(1 << 30, _TIMER_MS)
        except StoreError:
            return
        try:
            list(timer.entries())
            timer.add(timer.wait(_TIMER_MS + 30_000, _TIMER_MS), _TIMER_MS, 5000, 100, "orders")
            timer.flush(timer.checkpoint(_TIMER_MS))
        except StoreError:
            return
        finally:
            timer.close()
        timer = _timer(root)
        try:
            timer.open(1 << 30, _TIMER_MS)
            assert any(entry.physical_offset == 5000 for entry in timer.entries()), "a message is lost"
        finally:
            timer.close()


def _timer(root: Path) -> TimerStore:
    return TimerStore(root, 1000, 3600, 52 * 20)


@cache
def _good_timer() -> tempfile.TemporaryDirectory[str]:
    """Creates `store` with the files of a timer, as `_good_store` does."""
    directory = tempfile.TemporaryDirectory(prefix="gantry-fuzz-")
    timer = _timer(Path(directory.name) / "store")
    (Path(directory.name) / "store" / "config").mkdir(parents=True)
    timer.open(1 << 30, _TIMER_MS)
    for number in range(30):
        timer.add(timer.wait(_TIMER_MS + 1000 * (number % 5 + 1), _TIMER_MS), _TIMER_MS, 100 * number, 100, "orders")
    timer.flush(timer.checkpoint(_TIMER_MS))
    timer.close()
    return directory


@target
def recovery(data: bytes) -> None:
    """A store whose log, queues, index or checkpoint were changed. If it opens, it must not lose an appended message.

    The input is a list of changes: the number of the file (1 byte), the position (2 bytes), the length (1 byte), and
    the bytes. The length 255 cuts the file off at the position.
    """
    with tempfile.TemporaryDirectory(prefix="gantry-fuzz-") as directory:
        root = Path(directory) / "store"
        shutil.copytree(Path(_good_store().name) / "store", root)
        change(root, data)
        try:
            offset = _append(root)
        except GantryError:
            return
        store = _store(root)
        try:
            store.open()
            assert store.read_record(offset).body == b"acknowledged", "an acknowledged message is lost"
        finally:
            store.close()


def change(root: Path, data: bytes) -> None:
    """Applies the changes of an input (see `recovery`) to the files below a directory."""
    paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
    while len(data) >= 4:
        path, at, length = paths[data[0] % len(paths)], int.from_bytes(data[1:3]), data[3]
        content = bytearray(path.read_bytes())
        if length == 255:
            del content[at:]
            data = data[4:]
        else:
            content[at : at + length] = data[4 : 4 + length]
            data = data[4 + length :]
        path.write_bytes(content)


def _append(root: Path) -> int:
    """Opens a store, reads all queues and appends a message. Returns the message's place in the log."""
    store = _store(root)
    try:
        store.open()
        for topic, queue_ids in store.topics().items():
            for queue_id in queue_ids:
                queue = store.queue(topic, queue_id)
                store.get(queue, queue.min_offset, 32, 1 << 20)
        return _put(store, b"acknowledged")
    finally:
        store.close()


def _put(store: MessageStore, body: bytes) -> int:
    host = encode_host("127.0.0.1", 10911)
    queue = store.queue("orders", 0)
    return store.append(queue, 0, 0, 1_700_000_000_000, host, 0, body, b"KEYS\x01k\x02", 0).physical_offset


def _store(root: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=8192,
        mapped_file_size_consume_queue=1000,
        max_hash_slot_num=16,
        max_index_num=64,
    )
    return MessageStore(config, encode_host("127.0.0.1", 10911))


@cache
def _good_store() -> tempfile.TemporaryDirectory[str]:
    """Creates `store` with files of each kind, for all inputs of this process. The directory is deleted at its end."""
    directory = tempfile.TemporaryDirectory(prefix="gantry-fuzz-")
    store = _store(Path(directory.name) / "store")
    store.open()
    for number in range(60):
        _put(store, b"message %d" % number)
    store.close()
    return directory
