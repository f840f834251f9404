"""Messages that are much more expensive to display than to send, and unread responses of their size."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from console_target import ConsoleTarget, console_under_attack

from gantrymq.protocol.sys_flag import COMPRESSED

Record = Callable[[str, object], None]

_LARGE = 4 * 1024 * 1024 - 4096


async def send_and_read_nothing(target: ConsoleTarget, path: str, count: int, lasts_s: float) -> None:
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(target.connect()).send(target.head(path))
            await asyncio.sleep(0)
        await asyncio.sleep(lasts_s)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["message/body", "message", "messages", "api/v1/message"])
async def test_large_responses_that_nobody_reads(tmp_path: Path, page: str, record_property: Record) -> None:
    async with console_under_attack(tmp_path, login=True, record=record_property) as target:
        await target.store("large", b"x" * _LARGE, 4)
        query = "topic=large&broker=broker-a&queue=0&offset=0"
        await send_and_read_nothing(target, f"/{page}?{query}", 300, 15)


@pytest.mark.slow
async def test_exports_that_nobody_reads(tmp_path: Path, record_property: Record) -> None:
    async with console_under_attack(tmp_path, login=True, record=record_property) as target:
        await target.store("%DLQ%large", b"x" * 200_000, 100)
        await send_and_read_nothing(target, "/dead-letters/export?group=large", 300, 15)


@pytest.mark.slow
async def test_json_that_grows_when_it_is_laid_out(tmp_path: Path, record_property: Record) -> None:
    body = b"[" * 900 + b"1," * 500_000 + b"1" + b"]" * 900
    async with console_under_attack(tmp_path, login=True, record=record_property) as target:
        await target.store("deep", body)
        async with target.visitor() as visitor:
            for page in ("message", "api/v1/message", "messages"):
                answer = await visitor.get(f"/{page}?topic=deep&broker=broker-a&queue=0&offset=0")
                assert answer.status_code == 200
                assert len(answer.content) < 64 * 1024


@pytest.mark.slow
async def test_bodies_that_decompress_to_much_more(tmp_path: Path, record_property: Record) -> None:
    bomb = zlib.compress(bytes(32 * 1024 * 1024), 9)
    async with console_under_attack(tmp_path, login=True, record=record_property) as target:
        for topic in ("bombs", "%DLQ%bombs", "RMQ_SYS_TRACE_TOPIC"):
            await target.store(topic, bomb, 200, COMPRESSED)
        async with target.visitor() as visitor:
            pages = (
                "messages?topic=bombs&size=200",
                "messages?topic=bombs&key=k",
                "dead-letter-messages?group=bombs&search=nothing",
                "traces?id=k",
                "streams?progress=bombs",
            )
            for answer in await asyncio.gather(*(visitor.get(f"/{page}") for page in pages * 4)):
                assert answer.status_code in (200, 502), answer.text
            body = await visitor.get("/message/body?topic=bombs&broker=broker-a&queue=0&offset=0")
            assert len(body.content) == 32 * 1024 * 1024
