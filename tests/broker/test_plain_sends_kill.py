"""SIGKILL while native code stores whole reads.

All acknowledged messages are stored, and log and queues are consistent. A batch is stored completely or not at all.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from broker_support import config
from nursery import nursery

from gantrymq.kernels import native
from gantrymq.protocol.record import encode_host
from gantrymq.store.message_store import MessageStore
from gantrymq.store.verify import verify

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

ROUNDS = 20

WRITER = """
import os, random
from pathlib import Path
from broker_support import config
from plain_sends_support import batch_frame, frame
from gantrymq.kernels import native
from gantrymq.protocol.batch import decode_batch
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.record import encode_host
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.protocol.send_response import SendResponses
from gantrymq.store.message_store import MessageStore

HOST = encode_host("127.0.0.1", 10911)

def write(fd, root, seed):
    draw = random.Random(int(seed))
    store = MessageStore(config(Path(root)).store, HOST)
    store.open()
    answers = SendResponses(HOST, "r", True)
    sends = native.PlainSends([], b"POP_CK", b"", HOST, (1 << 20, 1000, 1 << 20), *answers.for_native, (b"KEY\x01", []))
    number = 0
    while True:
        frames = []
        for _ in range(draw.choice((1, 4, 60))):
            number += 1
            size, queue_id = draw.choice((0, 100, 3000)), draw.randrange(4)
            if draw.random() < 0.5:
                frames.append(frame("binary", number, b"%d " % number + bytes(size), e=queue_id))
                continue
            count = draw.randrange(1, 100)
            messages = [(0, b"%d %d %d " % (number, at, count) + bytes(size), b"") for at in range(count)]
            frames.append(batch_frame("binary", number, messages, e=queue_id))
        data = b"".join(frames)
        while data:
            sent = store.append_sends(sends, data, HOST)
            data = data[sent.dealt:]
            for answer in FrameReader().feed(sent.answers):
                fields = answer.ext_fields
                line = "%s %s %d\\n" % (fields["queueId"], fields["queueOffset"], answer.opaque)
                os.write(fd, line.encode())
            if not data:
                break
            # It is told of a header, or there is room for one at first.
            [request] = FrameReader().feed(data[: 4 + int.from_bytes(data[:4], "big")])
            decoded = decode_send_request(request)
            queue, is_batch = store.queue("orders", decoded.target.queue_id), request.code == 320
            if sent.is_asking:
                assert sends.allow(
                    request.opaque, decoded.born_timestamp, decoded.properties, b"orders", queue.queue_id, 0, 0,
                    is_batch, request.code, queue
                )
            queue_offset = queue.max_offset
            if is_batch:
                batch = store.begin_batch(queue, 0, 1, HOST, 0)
                for flag, body, properties in decode_batch(request.body):
                    batch.add(flag, body, properties, 0)
                store.append_batch(batch)
            else:
                store.append(queue, 0, 0, 1, HOST, 0, request.body, decoded.properties, tags_code(b"red"))
            os.write(fd, b"%d %d %d\\n" % (queue.queue_id, queue_offset, request.opaque))
            data = data[4 + int.from_bytes(data[:4], "big") :]
"""


def test_what_was_answered_survives(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    total = 0
    here = Path(__file__).parent
    with nursery(WRITER, here, here.parent) as writers:
        for number in range(ROUNDS):
            # The process is killed at the start, after the first response, or some time later.
            count = (0, 1, draw.randrange(300))[number % 3]
            lines = writers.run_and_kill(tmp_path / f"fifo{number}", count, tmp_path / "store", draw.randrange(1 << 32))
            total += len(lines)
            check(tmp_path / "store", [tuple(map(int, line.split())) for line in lines])
    assert total > ROUNDS * 10, f"{total} messages only"


def check(root: Path, answered: list[tuple[int, ...]]) -> None:
    settings = config(root).store
    store = MessageStore(settings, encode_host("127.0.0.1", 10911))
    store.open()
    for queue_id, queue_offset, number in answered:
        physical_offset, size, _ = store.queue("orders", queue_id).unit(queue_offset) or (0, 0, 0)
        record = store.read_record(physical_offset)
        assert (record.queue_id, record.queue_offset, record.size) == (queue_id, queue_offset, size)
        assert int(record.body.split()[0]) == number
    for queue_id in range(4):
        check_batches(store, queue_id)
    store.close()
    assert verify(settings).problems == []


def check_batches(store: MessageStore, queue_id: int) -> None:
    """Checks that the batches at the end of a queue are complete.

    A batch has less than 100 messages.
    """
    queue = store.queue("orders", queue_id)
    follows = None
    for queue_offset in range(max(queue.max_offset - 300, 0), queue.max_offset):
        physical_offset, _, _ = queue.unit(queue_offset) or (0, 0, 0)
        number, *place = map(int, store.read_record(physical_offset).body.rstrip(b"\0").split())
        at, count = place or (0, 1)
        assert follows is None or (number, at) == follows or (follows[1] == 0 and at == 0)
        follows = (number, at + 1) if at + 1 < count else (number, 0)
    assert follows is None or follows[1] == 0
