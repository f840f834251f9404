"""Decodes the messages of a pull or a pop record by record. An unreadable record does not affect the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gantrymq.errors import RecordError
from gantrymq.kernels import native
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.record import FIXED_SIZE_V4, MAGIC_V1, MAGIC_V2, Record, decode_record, unpacker

log = peer_log(__name__)

_unpack_size = unpacker("size")
_unpack_place = unpacker("magic", "queue_offset")


class Unreadable(NamedTuple):
    """An unreadable record: its estimated `queue_offset`, the readable part, and the error."""

    queue_offset: int
    record: Record | None
    error: RecordError

    def stand_in(self, queue: MessageQueue) -> MessageExt:
        """Returns a placeholder message whose body raises the error."""
        return MessageExt.damaged(queue, self.queue_offset, self.record, self.error)


#: A function that returns the replacement of an unreadable record. None stops the decoding.
InPlaceOf = Callable[[Unreadable], MessageExt | None]


def decode_pulled(
    buffer: bytes, queue: MessageQueue, first_offset: int, max_body_size: int, in_place_of: InPlaceOf
) -> tuple[list[MessageExt], int | None]:
    """Decodes consecutive messages of `queue` in `buffer`, which must start at `first_offset` or later, in order.

    A record of another queue or offset counts as unreadable. A record with an invalid size ends the decoding. Returns
    the messages, and the queue offset of the first undecoded record or None.
    """
    messages: list[MessageExt] = []
    topic, broker_name, queue_id = queue
    encoded_topic = topic.encode()
    pos, end, last = 0, len(buffer), first_offset - 1
    while pos < end:
        if native is not None and (found := native.pulled_records(buffer, pos, encoded_topic, queue_id, last)):
            messages += MessageExt.of_parts(queue, found, max_body_size)
            pos += sum([parts[0] for parts in found])
            last = found[-1][1]
            continue
        try:
            record = decode_record(buffer, pos)
            if record.queue_offset <= last or record.queue_id != queue_id or record.topic != encoded_topic:
                raise RecordError(_foreign(record, queue, last + 1))
            message = MessageExt(record, broker_name, max_body_size)
        except RecordError as e:
            unreadable = _unreadable(buffer, pos, last + 1, e)
            stand_in = in_place_of(unreadable)
            if stand_in is None:
                return messages, unreadable.queue_offset
            messages.append(stand_in)
            last = unreadable.queue_offset
            size = _unpack_size(buffer, pos)[0] if end - pos >= FIXED_SIZE_V4 else 0
            if not FIXED_SIZE_V4 <= size <= end - pos:
                return messages, last + 1
            pos += size
        else:
            messages.append(message)
            last = record.queue_offset
            pos += record.size
    return messages, None


def decode_popped(buffer: bytes, broker_name: str, max_body_size: int) -> list[MessageExt]:
    """Decodes consecutive messages in `buffer`.

    Unreadable messages are left out and never acknowledged. The broker therefore redelivers them, and finally moves
    them to the dead-letter queue.
    """
    messages: list[MessageExt] = []
    pos, end = 0, len(buffer)
    while pos < end:
        size = _unpack_size(buffer, pos)[0] if end - pos >= FIXED_SIZE_V4 else 0
        try:
            messages.append(MessageExt(decode_record(buffer, pos), broker_name, max_body_size))
        except RecordError as e:
            log.error("a popped record of broker %s can't be read, it is left out: %s", broker_name, e)
            if not FIXED_SIZE_V4 <= size <= end - pos:
                break
        pos += size
    return messages


def _foreign(record: Record, queue: MessageQueue, expected: int) -> str:
    topic = record.topic.decode(errors="replace")
    return (
        f"the broker sent offset {record.queue_offset} of queue {record.queue_id} of {topic} for one "
        f"from {expected} on of queue {queue.queue_id} of {queue.topic}"
    )


def _unreadable(buffer: bytes, pos: int, expected: int, error: RecordError) -> Unreadable:
    try:
        # The text does not contain the topic, because it may be unreadable.
        record = decode_record(buffer, pos, check_crc=False)._replace(topic=b"")
    except RecordError:
        record = None
    offset = expected
    if len(buffer) - pos >= FIXED_SIZE_V4:
        magic, says = _unpack_place(buffer, pos)
        if magic in (MAGIC_V1, MAGIC_V2) and says >= expected:
            offset = says
    return Unreadable(offset, record, error)
