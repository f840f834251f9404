"""Half messages that come in batches: those of a Spark task, say, which are ended in ranges (`protocol.half_ranges`).

A batch is stored as if each of its messages had come by itself, one behind the other, so that a Java broker that gets
the store goes on with them. GANTRY_HALF tells them from others: they aren't delayed, and nobody is asked about them,
for who sends so many isn't a client that answers. Those that aren't ended in time are rolled back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from gantrymq.broker.appender import Appender, born_host
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.room_waits import RoomWaits
from gantrymq.broker.transaction.half_messages import HALF_ROOM, half_queue
from gantrymq.errors import RequestRefused, StoreBusy
from gantrymq.protocol import properties as names
from gantrymq.protocol.batch import MAX_BATCH_MESSAGES, decode_batch
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.half_ranges import GANTRY_HALF
from gantrymq.protocol.headers.send import SendMessageResponseHeader
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import UniqueKeys, encode_offset_message_id
from gantrymq.protocol.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    encode_properties,
    find_property,
    without_property,
)
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.protocol.sys_flag import TRANSACTION_MASK
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.record_batch import RecordBatch

#: After their time, CHECK_IMMUNITY_TIME_IN_SECONDS, they may be committed for so long: a driver that has begun with
#: other brokers' waits for one that is away. A moment later they are rolled back.
GRACE_MS = 600_000
DROPPED_AFTER_MS = GRACE_MS + 60_000
#: Half messages that are made into records in one step, some 0.3 ms; fewer where their properties are longer.
_STEP = 100
_STEP_BYTES = 64 * 1024
#: What a half message has from its batch, and not of its own.
_OF_BATCH = (
    names.TRANSACTION_PREPARED,
    names.PRODUCER_GROUP,
    names.CHECK_IMMUNITY_TIME_IN_SECONDS,
    names.TRANSACTION_ID,
    names.TRANSACTION_PREPARED_QUEUE_OFFSET,
    names.TRANSACTION_CHECK_TIMES,
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.POP_CK,
    GANTRY_HALF,
)
_DELAYS = (b"DELAY", b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS")
#: Whether properties with a separator before each have one that is looked at. Of many messages at once that takes a
#: tenth of what it takes of each: a pattern that begins with one byte goes from one such byte to the next.
_has_special = re.compile(b"\x02(?:%b)\x01" % b"|".join((*map(str.encode, _OF_BATCH), *_DELAYS))).search
_is_delayed = re.compile(b"(?:^|\x02)(?:%b)\x01(?!0*\x02)" % b"|".join(_DELAYS)).search


class BatchProperties(NamedTuple):
    """What the properties of each half message of a batch end with; `waiting` is no part of the committed message."""

    staying: bytes
    waiting: bytes


@lru_cache(maxsize=1000)
def batch_properties(group: str, immunity_s: str, topic: str, queue_id: int) -> BatchProperties:
    staying = {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: group}
    if immunity_s:
        staying[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = immunity_s
    waiting = {names.REAL_TOPIC: topic, names.REAL_QUEUE_ID: str(queue_id), GANTRY_HALF: "true"}
    return BatchProperties(encode_properties(staying), encode_properties(waiting))


class HalfBatches:
    """Stores the batches of half messages of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        appender: Appender,
        flush_waits: FlushWaits,
        room_waits: RoomWaits,
        unique_keys: UniqueKeys,
    ) -> None:
        self._config = config
        self._appender = appender
        self._flush_waits = flush_waits
        self._room_waits = room_waits
        self._unique_keys = unique_keys

    def store(self, connection: Connection, request: RemotingCommand, queue: ConsumeQueue, waits: bool) -> Steps:
        """The steps of a SEND_BATCH_MESSAGE whose messages are for `queue`; whether its answer `waits` for the disk.

        Raises RequestRefused, BodyError.
        """
        if self._config.reject_transaction_message:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending transaction message is forbidden",
            )
        target, born_timestamp, _, properties, options = decode_send_request(request)
        given = decode_properties(properties)
        group, immunity_s = given.get(names.PRODUCER_GROUP), given.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS, "")
        if not group or (immunity_s and not (immunity_s.isdecimal() and len(immunity_s) < 10)):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch of half messages needs the property {names.PRODUCER_GROUP}, and of "
                f"{names.CHECK_IMMUNITY_TIME_IN_SECONDS} a number",
            )
        end = b"".join(batch_properties(group, immunity_s, queue.topic, queue.queue_id))
        batch = self._appender.store.begin_batch(
            half_queue(self._appender.store),
            target.sys_flag & ~TRANSACTION_MASK,
            born_timestamp,
            born_host(connection),
            options.reconsume_times,
        )
        messages = decode_batch(request.body)
        while some := _some_of(messages):
            if len(batch) + len(some) > MAX_BATCH_MESSAGES:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL, f"batch of more than {MAX_BATCH_MESSAGES} messages: send several"
                )
            is_special = _has_special(b"\x02".join([b"", *(own for _, _, own in some)])) is not None
            for flag, body, own in some:
                if is_special:
                    own = _without_special(own)
                own = self._own(own)
                code = tags_code(find_property(own, b"TAGS") or b"") if b"TAGS\x01" in own else 0
                if len(own) + len(end) > MAX_PROPERTIES_LENGTH - HALF_ROOM:
                    raise RequestRefused(
                        ResponseCode.MESSAGE_ILLEGAL,
                        f"message {len(batch) + 1} of the batch has {len(own) + len(end)} bytes of properties together "
                        f"with the broker's own: a half message's may have {MAX_PROPERTIES_LENGTH - HALF_ROOM}",
                    )
                batch.add(flag, body, own + end, code)
            yield
        if not batch:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "batch without messages")
        return self._append(batch, queue.queue_id, waits, connection, request)

    def _own(self, properties: bytes) -> bytes:
        """A message's own properties and its id, as a half message has them."""
        if properties and properties[-1] != 2:
            properties += b"\x02"
        # `find_property`, written out: 0.2 us less.
        at = properties.find(b"\x02UNIQ_KEY\x01")
        if at >= 0 and not properties.startswith(b"UNIQ_KEY\x01"):
            key = properties[at + 10 : properties.find(b"\x02", at + 10)]
        else:
            key = find_property(properties, b"UNIQ_KEY") or b""
        if not key:
            key = self._unique_keys.next().encode()
            properties += b"UNIQ_KEY\x01%b\x02" % key
        return properties + b"__transactionId__\x01%b\x02" % key

    def _append(
        self, batch: RecordBatch, queue_id: int, waits: bool, connection: Connection, request: RemotingCommand
    ) -> Reply:
        half_offset = batch.queue.max_offset
        try:
            places = self._appender.append_batch(batch)
        except StoreBusy:
            self._room_waits.hold(connection, request, partial(self._append, batch, queue_id, waits))
            return None
        response = RemotingCommand.response(
            header=SendMessageResponseHeader(
                msg_id=encode_offset_message_id(self._appender.store_host, places[0]),
                queue_id=queue_id,
                queue_offset=half_offset,
                msg_region=self._config.region_id,
                trace_on="true" if self._config.trace_on else "false",
            )
        )
        if waits:
            timeout_ms = decode_send_request(request).options.timeout_ms
            end = self._appender.store.max_physical_offset
            self._flush_waits.reply(connection, request, end, response, timeout_ms=timeout_ms)
            return None
        return response


def _some_of(messages: Iterator[tuple[int, bytes, bytes]]) -> list[tuple[int, bytes, bytes]]:
    """What is done in one step."""
    some, size = list[tuple[int, bytes, bytes]](), 0
    for message in messages:
        some.append(message)
        size += len(message[2])
        if len(some) == _STEP or size >= _STEP_BYTES:
            break
    return some


def _without_special(properties: bytes) -> bytes:
    """Without what a half message has from its batch. Raises RequestRefused for one that is delayed."""
    for name in _OF_BATCH:
        properties = without_property(properties, name.encode())
    if _is_delayed(properties + b"\x02"):
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch can't be delayed")
    return properties
