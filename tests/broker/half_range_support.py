"""Sends batches of half messages and ends their ranges, as the Spark writer does."""

from __future__ import annotations

from collections.abc import Sequence

from transaction_support import Producer

from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.half_ranges import HalfRange, encode_half_ranges
from gantrymq.protocol.headers.half_ranges import EndHalfMessagesRequestHeader
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED

GROUP = {"TRAN_MSG": "true", "PGROUP": "producers", "CHECK_IMMUNITY_TIME_IN_SECONDS": "900"}


async def send_halves(
    producer: Producer,
    topic: str,
    bodies: Sequence[bytes],
    properties: dict[str, str] | None = None,
    of_batch: dict[str, str] = GROUP,
    **more: object,
) -> RemotingCommand:
    own = encode_properties(properties or {})
    return await producer.send(
        topic,
        encode_batch((7, body, own) for body in bodies),
        properties=of_batch,
        code=RequestCode.SEND_BATCH_MESSAGE,
        sys_flag=TRANSACTION_PREPARED,
        **more,  # type: ignore[arg-type]
    )


async def prepare_many(
    producer: Producer,
    topic: str,
    bodies: Sequence[bytes],
    properties: dict[str, str] | None = None,
    of_batch: dict[str, str] = GROUP,
    **more: object,
) -> HalfRange:
    """Sends one batch of half messages and returns its range."""
    answer = await send_halves(producer, topic, bodies, properties, of_batch, **more)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    fields = answer.ext_fields
    return HalfRange(int(fields["queueOffset"]), decode_offset_message_id(fields["msgId"])[1], len(bodies))


async def end_many(
    producer: Producer,
    ranges: Sequence[HalfRange],
    verdict: int = TRANSACTION_COMMIT,
    *,
    topics: str = "orders",
    group: str = "producers",
) -> RemotingCommand:
    """Ends ranges with one request. The response can say that some half messages are left."""
    header = EndHalfMessagesRequestHeader(producer_group=group, topics=topics, commit_or_rollback=verdict)
    return await producer.ask(RequestCode.END_HALF_MESSAGES, header, encode_half_ranges(ranges))


async def end_all(
    producer: Producer, ranges: Sequence[HalfRange], verdict: int = TRANSACTION_COMMIT, *, topics: str = "orders"
) -> None:
    """Repeats the request until no half messages are left."""
    left = 1
    while left:
        answer = await end_many(producer, ranges, verdict, topics=topics)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        left = int(answer.ext_fields["left"])
