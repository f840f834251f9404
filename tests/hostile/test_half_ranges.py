"""One small request that ends fifty thousand half messages, and as many requests with wrong ranges."""

from __future__ import annotations

import asyncio

import pytest
from hostile_support import UnderAttack, send_header
from wait_until import until

from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.half_ranges import MAX_RANGES, HalfRange, encode_half_ranges
from gantrymq.protocol.headers.half_ranges import EndHalfMessagesRequestHeader
from gantrymq.protocol.headers.offset import QueueRequestHeader
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gantrymq.system.clock import now_ms

OF_BATCH = 2_000
BATCHES = 25
PROPERTIES = b"TRAN_MSG\x01true\x02PGROUP\x01g\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01900\x02"
HEADER = EndHalfMessagesRequestHeader(producer_group="g", topics="many", commit_or_rollback=TRANSACTION_COMMIT)


@pytest.mark.parametrize("verdict", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK], ids=["commit", "rollback"])
async def test_fifty_thousand_half_messages(under_attack: UnderAttack, verdict: int) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        body = encode_batch((0, b"x", b"") for _ in range(OF_BATCH))
        header = send_header("many", PROPERTIES, sys_flag=TRANSACTION_PREPARED, batch=True, born_timestamp=now_ms())
        ranges = []
        for _ in range(BATCHES):
            sent = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body, timeout_ms=20_000)
            assert sent.code == ResponseCode.SUCCESS, sent.remark
            fields = sent.ext_fields
            place = decode_offset_message_id(fields["msgId"])[1]
            ranges.append(HalfRange(int(fields["queueOffset"]), place, OF_BATCH))
        whole = HalfRange(ranges[0].half_offset, ranges[0].physical_offset, OF_BATCH * BATCHES)
        # These requests must be rejected: their ranges overlap each other, or ranges that are decided already.
        wrong = encode_half_ranges([whole] * MAX_RANGES)
        end = EndHalfMessagesRequestHeader(producer_group="g", topics="many", commit_or_rollback=verdict)

        async def all_ended() -> bool:
            answers = await asyncio.gather(
                peer.ask(RequestCode.END_HALF_MESSAGES, end, encode_half_ranges([whole]), timeout_ms=20_000),
                *(peer.ask(RequestCode.END_HALF_MESSAGES, end, wrong, timeout_ms=20_000) for _ in range(3)),
            )
            assert {answer.code for answer in answers[1:]} == {ResponseCode.SYSTEM_ERROR}
            assert answers[0].code == ResponseCode.SUCCESS, answers[0].remark
            return answers[0].ext_fields["left"] == "0"

        await until(all_ended, 60)
        offset = await peer.ask(RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic="many", queue_id=0))
        assert offset.ext_fields["offset"] == (str(OF_BATCH * BATCHES) if verdict == TRANSACTION_COMMIT else "0")


async def test_ranges_of_one_each(under_attack: UnderAttack) -> None:
    """The largest number of ranges per request; the broker must check each of them."""
    async with under_attack() as broker:
        peer = await broker.peer()
        body = encode_batch((0, b"x", b"") for _ in range(OF_BATCH))
        header = send_header("many", PROPERTIES, sys_flag=TRANSACTION_PREPARED, batch=True, born_timestamp=now_ms())
        sent = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body, timeout_ms=20_000)
        start = int(sent.ext_fields["queueOffset"])
        place = decode_offset_message_id(sent.ext_fields["msgId"])[1]
        # Only the first position is right. The lengths of the records are unknown.
        ranges = encode_half_ranges(
            [HalfRange(start, place, 1), *(HalfRange(start + n, 0, 1) for n in range(1, OF_BATCH))]
        )
        asked = [peer.ask(RequestCode.END_HALF_MESSAGES, HEADER, ranges, timeout_ms=20_000) for _ in range(200)]
        answers = await asyncio.gather(*asked)
        assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_ERROR}
