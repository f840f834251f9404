"""Messages that are in flight after a pop.

Brokers keep a pop in memory for 10 s. Then they store a checkpoint in their timers, and acknowledgements as further
records. The page shows the messages of stored checkpoints that have no acknowledgement.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from gantrymq.console.bodies import beginning_of
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.servers import servers_of
from gantrymq.console.queries.timer_reader import read_timer
from gantrymq.errors import BodyError, ProtocolError
from gantrymq.protocol.bodies.pop import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, Ack, Checkpoint, PopKey
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import REAL_TOPIC
from gantrymq.protocol.topic_name import REVIVE_TOPIC_PREFIX
from gantrymq.system.clock import now_ms

#: Largest decoded record, bytes. A checkpoint or an acknowledgement has some hundred bytes.
_MAX_RECORD_BYTES = 64 * 1024


class PoppedMessages(msgspec.Struct):
    """One pop of a queue. The messages at `offsets` are in flight, and are redelivered at `back_ms`."""

    group: str
    topic: str
    broker: str
    queue_id: int
    popped_ms: int
    back_ms: int
    offsets: list[int]


class PoppedMessagesPage(msgspec.Struct):
    """The messages in flight. `open` is their total number.

    `partly` has the brokers with more records than were read. Only their newest records are included.
    """

    table: Cut[PoppedMessages]
    open: int
    partly: list[str]
    unasked: list[Unasked]


async def popped_messages(view: ClusterView, arguments: ListArguments) -> PoppedMessagesPage:
    servers = await servers_of(view)
    now = now_ms()
    names = {address: name for name, address in servers.masters.items()}
    answers = await view.each(names, lambda address: read_timer(view, names[address], address, _decode, now))
    rows: list[PoppedMessages] = []
    for address, (records, _) in answers.results.items():
        acked: dict[PopKey, set[int]] = defaultdict(set)
        for record in records:
            if isinstance(record, Ack):
                acked[record.key].update(record.offsets or [record.offset])
        for record in records:
            if isinstance(record, Checkpoint):
                left = _unacked(record, acked[record.key])
                if left:
                    rows.append(
                        PoppedMessages(
                            record.group,
                            record.topic,
                            names[address],
                            record.queue_id,
                            record.pop_time,
                            record.revive_time,
                            left,
                        )
                    )
    columns = {
        "group": lambda r: (r.group, r.topic),
        "back": lambda r: r.back_ms,
        "popped": lambda r: r.popped_ms,
        "open": lambda r: len(r.offsets),
    }
    table = cut(rows, arguments, columns, text=lambda r: f"{r.group} {r.topic} {r.broker}", default="back")
    partly = sorted(names[address] for address, (_, is_all) in answers.results.items() if not is_all)
    return PoppedMessagesPage(table, sum(len(row.offsets) for row in rows), partly, answers.unasked)


def _decode(message: MessageExt, out_ms: int) -> Checkpoint | Ack | None:
    if not message.properties.get(REAL_TOPIC, "").startswith(REVIVE_TOPIC_PREFIX):
        return None
    try:
        body = beginning_of(message, _MAX_RECORD_BYTES)
        if message.tags == CHECKPOINT_TAG:
            return decode_json(body, Checkpoint)
        return decode_json(body, Ack) if message.tags in (ACK_TAG, BATCH_ACK_TAG) else None
    except (BodyError, ProtocolError):
        return None


def _unacked(checkpoint: Checkpoint, acked: set[int]) -> list[int]:
    """Returns the offsets of messages that neither the checkpoint nor a later record acknowledges."""
    bits = checkpoint.bit_map & 0xFFFFFFFF
    return [offset for index, offset in enumerate(checkpoint.offsets) if not bits >> index & 1 and offset not in acked]
