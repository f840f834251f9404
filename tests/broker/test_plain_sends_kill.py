"""SIGKILL while native code stores whole reads: what was answered is there, and log and queues agree."""

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
from plain_sends_support import PLAIN, frame
from gantrymq.kernels import native
from gantrymq.protocol.frame_reader import FrameReader
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
    sends = native.PlainSends([], b"", HOST, 1 << 20, answers.binary_parts, answers.json_parts)
    number = 0
    while True:
        frames = []
        for _ in range(draw.choice((1, 4, 60))):
            number += 1
            body = b"%d " % number + bytes(draw.choice((0, 100, 3000)))
            frames.append(frame("binary", number, body, e=draw.randrange(4)))
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
            queue = store.queue("orders", decoded.target.queue_id)
            if sent.is_asking:
                assert sends.allow(
                    request.opaque, decoded.born_timestamp, decoded.properties, b"orders", queue.queue_id, 0, 0, queue
                )
            put = store.append(queue, 0, 0, 1, HOST, 0, request.body, decoded.properties, 0)
            os.write(fd, b"%d %d %d\\n" % (queue.queue_id, put.queue_offset, request.opaque))
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
            # Soon, at the first answer, some time later.
            count = (0, 1, draw.randrange(3000))[number % 3]
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
    store.close()
    assert verify(settings).problems == []
