"""Decodes message traces, which clients write to a separate topic if traces are on.

The keys of a trace message are the ids of its messages. Source: client/trace/TraceDataEncoder, TraceView.
"""

from __future__ import annotations

import msgspec

from gantrymq.errors import BodyError

_END_OF_LINE = "\x02"
_END_OF_FIELD = "\x01"


class TraceView(msgspec.Struct, rename="camel"):
    """One send (`Pub`), consumption (`SubAfter`) or end of a transaction (`EndTransaction`); times in ms.

    If the client of a consumption is older than 4.9, `timestamp` is 0. `transaction_state` is Java's name of the
    result.
    """

    msg_type: str
    msg_id: str
    group: str
    client_host: str
    timestamp: int
    cost_time: int
    success: bool
    topic: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    transaction_state: str = ""


def decode_trace(body: bytes, client_host: str, *, ends: bool = False) -> list[TraceView]:
    """Decodes sends, consumptions and, with `ends`, ends of transactions from a trace message.

    Other lines are ignored. Raises BodyError for a line with missing fields or invalid numbers.
    """
    views = []
    for line in body.decode("utf-8", "replace").split(_END_OF_LINE):
        fields = line.split(_END_OF_FIELD)
        try:
            if fields[0] == "Pub":
                views.append(_send(fields, client_host))
            elif fields[0] == "SubAfter":
                views.append(_consumption(fields, client_host))
            elif ends and fields[0] == "EndTransaction":
                views.append(_end(fields, client_host))
        except (IndexError, ValueError) as e:
            raise BodyError(f"trace {line[:200]!r} can't be read: {e}") from e
    return views


def _send(fields: list[str], client_host: str) -> TraceView:
    _, timestamp, _, group, topic, msg_id, tags, keys, store_host, _, cost_time, _, *rest = fields
    # Old clients do not write the offset message id, which comes before this field.
    success = rest[0] if len(rest) == 1 else rest[1]
    return TraceView(
        "Pub",
        msg_id,
        group,
        client_host,
        int(timestamp),
        int(cost_time),
        success == "true",
        topic,
        tags,
        keys,
        store_host,
    )


def _consumption(fields: list[str], client_host: str) -> TraceView:
    _, _, msg_id, cost_time, success, keys, *rest = fields
    timestamp, group = (int(rest[1]), rest[2]) if len(rest) >= 3 else (0, "")
    return TraceView("SubAfter", msg_id, group, client_host, timestamp, int(cost_time), success == "true", keys=keys)


def _end(fields: list[str], client_host: str) -> TraceView:
    _, timestamp, _, group, topic, msg_id, tags, keys, store_host, _, _, state, *_ = fields
    return TraceView(
        "EndTransaction", msg_id, group, client_host, int(timestamp), 0, True, topic, tags, keys, store_host, state
    )
