"""Unreadable records of several kinds, and a broker that serves them between readable ones."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from struct import pack_into

from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving

from gantrymq.protocol.bodies.offset import QueueLockAnswer, QueueLockRequest
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.compression import CompressionType, compression_flag
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.pop import PopMessageResponseHeader
from gantrymq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from gantrymq.protocol.record import encode_host, encode_record, offset_of
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.system.clock import now_ms

HOST = encode_host("127.0.0.1", 10911)
ZLIB = compression_flag(CompressionType.ZLIB)
#: Largest body that the consumers of these tests accept, in bytes.
MAX_BODY_SIZE = 1024 * 1024


def good(
    offset: int,
    body: bytes | None = None,
    sys_flag: int = 0,
    topic: bytes = b"topic",
    queue_id: int = 0,
    properties: bytes = b"",
) -> bytes:
    body = b"good %d" % offset if body is None else body
    properties += b"UNIQ_KEY\x01K%d\x02" % offset
    place = 5000 + offset
    return encode_record(queue_id, 0, offset, place, sys_flag, 1, HOST, 2, HOST, 0, 0, body, topic, properties)


def _changed(field: str, code: str, value: int) -> Callable[[int], bytes]:
    def make(offset: int) -> bytes:
        record = bytearray(good(offset))
        pack_into(code, record, offset_of(field), value)
        return bytes(record)

    return make


#: Records with an unreadable body. All other fields are readable.
BAD_BODIES: dict[str, Callable[[int], bytes]] = {
    "no zlib": lambda offset: good(offset, b"nonsense", ZLIB),
    "zlib that is cut off": lambda offset: good(offset, zlib.compress(b"x" * 10_000)[:-5], ZLIB),
    "no lz4": lambda offset: good(offset, b"nonsense", compression_flag(CompressionType.LZ4)),
    "no zstd": lambda offset: good(offset, b"nonsense", compression_flag(CompressionType.ZSTD)),
    "compression that nobody knows": lambda offset: good(offset, b"nonsense", ZLIB | 7 << 8),
    "bomb": lambda offset: good(offset, zlib.compress(bytes(MAX_BODY_SIZE + 1)), ZLIB),
}
#: Damaged records, and records that do not belong to this queue.
BAD_RECORDS: dict[str, Callable[[int], bytes]] = {
    "another CRC": _changed("body_crc", ">i", 12345),
    "no record": _changed("magic", ">I", 0x12345678),
    "lengths that don't add up": _changed("body_length", ">i", 1_000_000),
    "negative length": _changed("body_length", ">i", -1),
    "topic that is no text": lambda offset: good(offset, topic=b"\xff\xfe\xff"),
    "record of another topic": lambda offset: good(offset, topic=b"other"),
    "record of another queue": lambda offset: good(offset, queue_id=7),
}


class LogBroker(ScriptedGroupBroker):
    """A broker with one queue that contains the given records. The index in the list is the offset."""

    def __init__(self, records: list[bytes]) -> None:
        super().__init__()
        self.records = records
        self.sent_anew: list[tuple[SendMessageRequestHeaderV2, bytes]] = []

    def handlers(self) -> dict[int, RequestHandler]:
        return super().handlers() | {
            RequestCode.LITE_PULL_MESSAGE: self._pull,
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: lambda connection, request: RemotingCommand.response(),
        }

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        header = request.read_header(PullMessageRequestHeader)
        self.pulls.append(header)
        if header.topic != "topic" or header.queue_offset >= len(self.records):
            return None
        answer = PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=len(self.records),
            min_offset=0,
            max_offset=len(self.records),
        )
        return RemotingCommand.response(
            ResponseCode.SUCCESS, "as scripted", answer, b"".join(self.records[header.queue_offset :])
        )

    def _pop(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        if not self.records:
            return RemotingCommand.response(ResponseCode.PULL_NOT_FOUND)
        records, self.records = self.records, []
        answer = PopMessageResponseHeader(pop_time=now_ms(), invisible_time=60_000, revive_qid=0, rest_num=0)
        return RemotingCommand.response(header=answer, body=b"".join(records))

    def _send(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(SendMessageRequestHeaderV2)
        self.sent_anew.append((header, request.body))
        return RemotingCommand.response(header=SendMessageResponseHeader(msg_id="0" * 32, queue_id=0, queue_offset=0))

    def _lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        wanted = decode_json(request.body, QueueLockRequest)
        return RemotingCommand.response(body=encode_json(QueueLockAnswer(wanted.mq_set)))


@asynccontextmanager
async def serving_topic(broker: LogBroker) -> AsyncIterator[str]:
    """Yields the address of a NameServer with a route to the broker's queue."""
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        for topic in ("topic", "%RETRY%group"):
            name_server.routes[topic] = route_over({"broker": broker.address}, queue_nums=1)
        yield name_server.address
