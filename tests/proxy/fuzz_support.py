"""Mutations of valid inputs for the fuzzers of the proxy, each from a seed."""

from __future__ import annotations

import gzip
import os
import random
import time
from collections.abc import Callable, Iterator

from google.protobuf.message import Message

from gantrymq.proxy.call import METHODS
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb

#: CPU time of each fuzzer in seconds, and the seed of its first case. Each further case has the next seed.
SECONDS = float(os.environ.get("FUZZ_SECONDS", "2"))
FIRST_SEED = int(os.environ.get("FUZZ_SEED", "0"))

_TOPIC, _GROUP = pb.Resource(name="topic"), pb.Resource(name="group")
_HANDLE = "0 1700000000000 60000 0 0 broker-a 0 12 345"
REQUESTS: dict[str, Message] = {
    "QueryRoute": rpc_pb.QueryRouteRequest(
        topic=_TOPIC, endpoints=pb.Endpoints(addresses=[pb.Address(host="localhost", port=8081)])
    ),
    "SendMessage": rpc_pb.SendMessageRequest(
        messages=[
            pb.Message(
                topic=_TOPIC,
                body=b"body",
                user_properties={"name": "value"},
                system_properties=pb.SystemProperties(
                    message_id="01" * 16, tag="tag", keys=["a", "b"], message_group="g", message_type=pb.FIFO
                ),
            ),
            pb.Message(
                topic=_TOPIC,
                body=gzip.compress(b"text" * 100),
                system_properties=pb.SystemProperties(message_id="02" * 16, body_encoding=pb.GZIP),
            ),
        ]
    ),
    "AckMessage": rpc_pb.AckMessageRequest(
        group=_GROUP,
        topic=_TOPIC,
        entries=[rpc_pb.AckMessageEntry(message_id="01" * 16, receipt_handle=_HANDLE)] * 3,
    ),
    "ReceiveMessage": rpc_pb.ReceiveMessageRequest(
        group=_GROUP,
        message_queue=pb.MessageQueue(topic=_TOPIC),
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="a || b"),
        batch_size=32,
    ),
    "Telemetry": rpc_pb.TelemetryCommand(
        settings=pb.Settings(
            client_type=pb.PUSH_CONSUMER,
            subscription=pb.Subscription(
                group=_GROUP,
                subscriptions=[
                    pb.SubscriptionEntry(topic=_TOPIC, expression=pb.FilterExpression(type=pb.TAG, expression="*"))
                ],
            ),
        )
    ),
}


def cases() -> Iterator[tuple[int, random.Random]]:
    """Yields seeds with their generators until the CPU time is used up."""
    began = time.process_time()
    seed = FIRST_SEED
    while time.process_time() - began < SECONDS:
        yield seed, random.Random(seed)
        seed += 1


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Returns the data with some bytes changed, inserted, removed or repeated."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(changed):
                changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 2:
                changed[at:at] = chance.randbytes(chance.choice((1, 2, 4, 40)))
            case 3:
                del changed[at : at + chance.choice((1, 2, 5, 50))]
            case 4:
                changed[at:at] = changed[at : at + chance.choice((2, 10, 100))] * chance.choice((1, 2, 30))
            case _:
                del changed[at:]
    return bytes(changed)


def message(request: Message, chance: random.Random, *, is_gzip: bool) -> bytes:
    """Returns a gRPC message, mutated in half of all cases."""
    data = request.SerializeToString()
    if chance.random() < 0.3:
        data = mutated(data, chance)
    if is_gzip:
        data = gzip.compress(data)
        if chance.random() < 0.3:
            data = mutated(data, chance)
    length = len(data) if chance.random() < 0.9 else chance.choice((0, len(data) + 1, 1 << 31, (1 << 32) - 1))
    return bytes((is_gzip,)) + length.to_bytes(4, "big") + data


def header_block(method: str, chance: random.Random, *, is_gzip: bool) -> bytes:
    fields = {
        b"content-type": b"application/grpc",
        b"te": b"trailers",
        b"x-mq-client-id": b"client",
        b"grpc-timeout": b"30S",
    }
    if is_gzip:
        fields[b"grpc-encoding"] = b"gzip"
    path = literal(b":path", f"/apache.rocketmq.v2.MessagingService/{method}".encode())
    block = b"\x83\x86" + path + b"".join(literal(name, value) for name, value in fields.items())
    if chance.random() < 0.3:
        # A Huffman-coded field for the dynamic table, and another field by its index.
        block += b"\x40\x85\xf2\xb2\x4a\x87\xff\x84\x94\xe7\x8d\xff\xbe"
    return mutated(block, chance) if chance.random() < 0.2 else block


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return frames.frame_head(kind, flags, stream_id, len(payload)) + payload


def connection(chance: random.Random) -> bytes:
    """Returns the bytes of a client's connection: some calls, with other frames between them."""
    pieces: list[bytes] = []
    for n in range(chance.randrange(1, 8)):
        stream_id = 2 * n + 1
        is_gzip = chance.random() < 0.3
        method = chance.choice([*METHODS.values()]).name
        block = header_block(method, chance, is_gzip=is_gzip)
        cut = chance.randrange(len(block) + 1) if chance.random() < 0.2 else len(block)
        flags = frames.END_HEADERS if cut == len(block) else 0
        pieces.append(frame(frames.HEADERS, flags, stream_id, block[:cut]))
        if not flags:
            pieces.append(frame(frames.CONTINUATION, frames.END_HEADERS, stream_id, block[cut:]))
        request = REQUESTS.get(method, chance.choice([*REQUESTS.values()]))
        data = b"".join(message(request, chance, is_gzip=is_gzip) for _ in range(chance.choice((1, 1, 1, 0, 3))))
        at = 0
        while at < len(data):
            end = at + chance.choice((len(data), len(data), 3, 50))
            pieces.append(frame(frames.DATA, 0, stream_id, data[at:end]))
            at = end
        if chance.random() < 0.8:
            pieces.append(frame(frames.DATA, frames.END_STREAM, stream_id, b""))
    for _ in range(chance.randrange(4)):
        pieces.insert(chance.randrange(len(pieces) + 1), _other_frame(chance))
    if chance.random() < 0.3:
        chance.shuffle(pieces)
    sent = frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: chance.choice((0, 1, 65_535, 1 << 20))})
    pieces = [frames.PREFACE, sent, *pieces]
    if chance.random() < 0.4:
        at = chance.randrange(len(pieces))
        pieces[at] = mutated(pieces[at], chance)
    return b"".join(pieces)


def _other_frame(chance: random.Random) -> bytes:
    stream_id = chance.choice((0, 1, 3, 5, 2, 99))
    number = chance.choice((0, 1, 1000, 0x7FFFFFFF, 0xFFFFFFFF)).to_bytes(4, "big")
    return chance.choice(
        (
            frame(frames.WINDOW_UPDATE, 0, stream_id, number),
            frame(frames.RST_STREAM, 0, stream_id, number),
            frame(frames.PING, chance.choice((0, frames.ACK)), 0, bytes(8)),
            frame(frames.PRIORITY, 0, stream_id, number + b"\x01"),
            frame(frames.SETTINGS, 0, 0, bytes((0, chance.randrange(8))) + number),
            frame(frames.GOAWAY, 0, 0, number * 2),
            frame(frames.DATA, frames.PADDED, stream_id, bytes((chance.randrange(256),)) + bytes(20)),
            frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, literal(b"a", b"b")),
            frame(chance.randrange(256), chance.randrange(256), stream_id, chance.randbytes(chance.randrange(30))),
        )
    )


def chunks(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yields the data in reads of random sizes."""
    size: Callable[[], int] = chance.choice((lambda: len(data), lambda: chance.randrange(1, 40)))
    at = 0
    while at < len(data):
        end = at + size()
        yield data[at:end]
        at = end
