"""POP's open receipts: messages that a group was handed and hasn't acknowledged yet.

Brokers remember a pop in memory for its first ten seconds; one that isn't acknowledged by then they note in their
timers, until its messages come back. What is noted there is shown here, less what was acknowledged since.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from gantrymq.console.asking import Unasked
from gantrymq.console.bodies import beginning_of
from gantrymq.console.eye import Eye
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.servers import servers_of
from gantrymq.console.queries.timed import look_at_timer
from gantrymq.errors import BodyError, ProtocolError
from gantrymq.protocol.bodies.pop import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, Ack, Checkpoint, PopKey
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import REAL_TOPIC
from gantrymq.protocol.topic_name import REVIVE_TOPIC_PREFIX
from gantrymq.system.clock import now_ms

#: A checkpoint or an acknowledgement is some hundred bytes; what is longer is something else.
_MAX_NOTE_BYTES = 64 * 1024


class Receipt(msgspec.Struct):
    """One pop of a queue: `offsets` aren't acknowledged, and come back at `back_ms`. Times in ms."""

    group: str
    topic: str
    broker: str
    queue_id: int
    popped_ms: int
    back_ms: int
    offsets: list[int]


class ReceiptsPage(msgspec.Struct):
    """`open` messages in all; `partly` are brokers of which only the newest notes were looked at."""

    table: Cut[Receipt]
    open: int
    partly: list[str]
    unasked: list[Unasked]


async def receipts(eye: Eye, arguments: ListArguments) -> ReceiptsPage:
    servers = await servers_of(eye)
    now = now_ms()
    names = {address: name for name, address in servers.masters.items()}
    answers = await eye.each(names, lambda address: look_at_timer(eye, names[address], address, _note, now))
    rows: list[Receipt] = []
    for address, (notes, _) in answers.answers.items():
        acked: dict[PopKey, set[int]] = defaultdict(set)
        for note in notes:
            if isinstance(note, Ack):
                acked[note.key].update(note.offsets or [note.offset])
        for note in notes:
            if isinstance(note, Checkpoint):
                left = _unacked(note, acked[note.key])
                if left:
                    rows.append(
                        Receipt(
                            note.group,
                            note.topic,
                            names[address],
                            note.queue_id,
                            note.pop_time,
                            note.revive_time,
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
    partly = sorted(names[address] for address, (_, is_all) in answers.answers.items() if not is_all)
    return ReceiptsPage(table, sum(len(row.offsets) for row in rows), partly, answers.unasked)


def _note(message: MessageExt, out_ms: int) -> Checkpoint | Ack | None:
    if not message.properties.get(REAL_TOPIC, "").startswith(REVIVE_TOPIC_PREFIX):
        return None
    try:
        body = beginning_of(message, _MAX_NOTE_BYTES)
        if message.tags == CHECKPOINT_TAG:
            return decode_json(body, Checkpoint)
        return decode_json(body, Ack) if message.tags in (ACK_TAG, BATCH_ACK_TAG) else None
    except (BodyError, ProtocolError):
        return None


def _unacked(checkpoint: Checkpoint, acked: set[int]) -> list[int]:
    """What neither the checkpoint nor a note after it says is acknowledged."""
    bits = checkpoint.bit_map & 0xFFFFFFFF
    return [offset for place, offset in enumerate(checkpoint.offsets) if not bits >> place & 1 and offset not in acked]
