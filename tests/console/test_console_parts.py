"""Parts of the console without a cluster: lists, limits, cached data, figures, languages, times."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gantrymq.console import template_filters
from gantrymq.console.cached_value import CachedValue
from gantrymq.console.fan_out import query_each
from gantrymq.console.language import language_of, texts, translator
from gantrymq.console.links import link, local
from gantrymq.console.listing import MAX_SIZE, ListArguments, cut
from gantrymq.console.pages import BadArguments, parse_time
from gantrymq.console.request_limits import LimitedAdmin, RequestLimits
from gantrymq.console.settings import is_loopback
from gantrymq.errors import ConnectFailed, GantryError, RequestTimeout


class Row(msgspec.Struct):
    name: str
    size: int


ROWS = [Row(f"row-{n:05d}", n % 100) for n in range(20_000)]
COLUMNS = {"name": lambda row: row.name, "size": lambda row: row.size}


def test_a_list_is_cut() -> None:
    found = cut(
        ROWS, ListArguments(search="ROW-0001", sort="-size", size=5), COLUMNS, text=lambda r: r.name, default=""
    )
    assert (found.total, found.found, found.pages) == (20_000, 10, 2)
    assert [row.name for row in found.rows] == [f"row-000{n}" for n in (19, 18, 17, 16, 15)]
    equal = cut(ROWS, ListArguments(sort="-size", size=3), COLUMNS, text=lambda r: r.name, default="name")
    assert [row.name for row in equal.rows] == ["row-00099", "row-00199", "row-00299"]
    for size, shown in ((0, 1), (-5, 1), (10**9, MAX_SIZE)):
        assert len(cut(ROWS, ListArguments(size=size), COLUMNS, text=lambda r: r.name, default="name").rows) == shown
    nothing = cut([], ListArguments(page=7), COLUMNS, text=lambda r: r.name, default="name")
    assert (nothing.rows, nothing.page, nothing.pages) == ([], 1, 1)


# -- cached data ----------------------------------------------------------------------------------------------------


async def test_a_page_doesnt_wait_for_what_takes_long() -> None:
    gate = asyncio.Event()
    asked = 0

    async def gather() -> int:
        nonlocal asked
        asked += 1
        await gate.wait()
        return asked

    gathered = CachedValue(gather, fresh_s=1000)
    assert await gathered.get(0.01) is None
    assert await gathered.get(0.01) is None
    assert asked == 1
    gate.set()
    assert await gathered.get() == 1
    assert await gathered.get() == 1
    # After a change, the old value is used until the new one is available.
    gate.clear()
    gathered.forget()
    assert await gathered.get(0.01) == 1
    gate.set()
    assert await gathered.get() == 2
    await gathered.close()


async def test_a_failure_is_told_only_when_there_is_nothing_else() -> None:
    answers: list[int | Exception] = [GantryError("none yet"), 1, GantryError("gone"), ValueError("a mistake"), 2]

    async def gather() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    gathered = CachedValue(gather, fresh_s=1000)
    with pytest.raises(GantryError, match="none yet"):
        await gathered.get()
    assert await gathered.get() == 1
    gathered.forget()
    assert await gathered.get() == 1
    with pytest.raises(ValueError, match="a mistake"):
        await gathered.get()
    assert await gathered.get() == 2


async def test_what_took_long_is_asked_for_less_often() -> None:
    asked = 0

    async def gather() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.2)
        return asked

    gathered = CachedValue(gather, fresh_s=0.0)
    assert await gathered.get() == 1
    assert await gathered.get() == 1
    assert asked == 1


async def test_nobody_waits_for_a_newer_value() -> None:
    """Except after a change."""
    gates = [asyncio.Event() for _ in range(2)]
    gates[0].set()
    asked = 0

    async def gather() -> int:
        nonlocal asked
        asked += 1
        await gates[min(asked, 2) - 1].wait()
        return asked

    gathered = CachedValue(gather, fresh_s=0.0)
    assert await gathered.get(30.0) == 1
    async with asyncio.timeout(5):
        assert await gathered.get(30.0, 0.01) == 1
    gathered.forget()
    newest = asyncio.ensure_future(gathered.get(30.0, 0.01))
    await asyncio.sleep(0.05)
    assert not newest.done()
    gates[1].set()
    assert await newest > 1
    await gathered.close()


async def test_what_was_forgotten_while_it_was_asked_for_is_asked_for_again() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    asked = 0

    async def gather() -> int:
        nonlocal asked
        asked += 1
        mine = asked
        await gates[mine - 1].wait()
        return mine

    gathered = CachedValue(gather, fresh_s=1000)
    assert await gathered.get(0.01) is None
    # The change may be later than the query.
    gathered.forget()
    for gate in gates:
        gate.set()
    assert await gathered.get() == 2
    await gathered.close()


async def test_pages_do_not_each_wait_for_a_first_value() -> None:
    """The first caller waits for the value. If this takes too long, later callers wait only briefly."""
    gate = asyncio.Event()
    gathered = CachedValue(gate.wait, fresh_s=1.0)
    assert await gathered.get(0.5) is None
    async with asyncio.timeout(0.4):
        assert await gathered.get(0.5, 0.01) is None
    gate.set()
    assert await gathered.get(0.5) is True
    await gathered.close()


async def test_closing_ends_what_is_under_way() -> None:
    ended = asyncio.Event()

    async def gather() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 0

    gathered = CachedValue(gather, fresh_s=1.0)
    assert await gathered.get(0.01) is None
    await gathered.close()
    assert ended.is_set()


async def test_asking_many() -> None:
    async def ask(one: str) -> str:
        if one == "slow":
            await asyncio.Event().wait()
        if one == "failing":
            raise GantryError("it can't")
        return one.upper()

    answers = await query_each(["a", "failing", "slow", "a"], ask, 0.05)
    assert answers.results == {"a": "A"}
    assert [(one.what, one.why) for one in answers.unasked] == [
        ("failing", "it can't"),
        ("slow", "no answer in 0.05 s"),
    ]


async def test_so_many_questions_at_once_and_no_more() -> None:
    """A server without responses occupies only its own share of the limit."""
    limits = RequestLimits(at_once=3, at_one_server=2)
    open_now = most = 0
    release = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    admins = [LimitedAdmin("127.0.0.1:1", limits, credentials=None, ssl_context=None, timeout_ms=300) for _ in range(2)]

    async def ask(n: int) -> None:
        nonlocal open_now, most
        of_server, _ = limits.semaphores(address)
        with pytest.raises(GantryError):
            await admins[n % 2].runtime_info(address)
        most = max(most, 2 - of_server._value)

    asking = asyncio.gather(*(ask(n) for n in range(6)))
    elsewhere = asyncio.ensure_future(admins[0].runtime_info("127.0.0.1:1"))
    with pytest.raises(GantryError, match="can't connect"):
        await elsewhere
    assert not asking.done()
    await asking
    assert most <= 2
    release.set()
    for admin in admins:
        await admin.close()
    server.close()


async def test_a_server_that_hangs_is_waited_for_once() -> None:
    """Later requests fail at once for all callers, until the server responds to a probe."""
    connected = 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    limits = RequestLimits()
    admins = [
        LimitedAdmin("127.0.0.1:1", limits, credentials=None, ssl_context=None, timeout_ms=1000) for _ in range(2)
    ]
    with pytest.raises(RequestTimeout):
        await admins[0].runtime_info(address)
    began = asyncio.get_running_loop().time()
    for admin in admins * 20:
        with pytest.raises(ConnectFailed, match="didn't answer"):
            await admin.runtime_info(address)
    assert asyncio.get_running_loop().time() - began < 1.0
    assert connected == 1
    limits.breakers.answered(address)
    with pytest.raises(RequestTimeout):
        await admins[1].runtime_info(address)
    for admin in admins:
        await admin.close()
    server.close()


# -- texts ----------------------------------------------------------------------------------------------------------


def test_figures() -> None:
    assert [template_filters.number(n) for n in (None, 0, 12345, 1.25)] == ["–", "0", "12,345", "1.2"]
    assert [template_filters.size(n) for n in (None, 1023, 1536, 5 << 40)] == ["–", "1023 B", "1.5 KiB", "5.0 TiB"]
    assert [template_filters.span(s) for s in (None, 1.23, 90, 150, 7200, 86400 * 40)] == [
        "–",
        "1.2 s",
        "90 s",
        "2 min",
        "2 h",
        "40 d",
    ]
    assert template_filters.percent(0.634) == "63%"
    assert template_filters.moment(1_700_000_000_123) == (
        '<time datetime="2023-11-14T22:13:20.123Z">2023-11-14 22:13:20.123Z</time>'
    )
    for nothing in (None, 0, -1, 2**62):
        assert template_filters.moment(nothing) == "–"


def test_languages() -> None:
    assert language_of(None, "zh-CN,zh;q=0.9,en;q=0.8") == "zh"
    assert language_of("en", "zh-CN") == "en"
    assert language_of("xx", "fr, de;q=0.5") == "en"
    assert translator("zh")("{count} failed", count=3) == "失败 3 次"
    assert translator("zh")("not translated") == "not translated"
    # A value is not used as a format string.
    assert translator("en")("{count} failed", count="{0.__class__}") == "{0.__class__} failed"


def test_translations_have_the_same_values() -> None:
    import re

    for english, chinese in texts("zh").items():
        assert set(re.findall(r"{(\w+)}", english)) == set(re.findall(r"{(\w+)}", chinese)), english


def test_links() -> None:
    assert link("topic", name="%RETRY%a|b&c") == "/topic?name=%25RETRY%25a%7Cb%26c"
    assert link("topics", ListArguments(search="x", page=3), page=1) == "/topics?search=x&page=1"
    for elsewhere in ("//x", "https://x", "/\\x", "", "javascript:alert(1)"):
        assert local(elsewhere) == "/"
    assert local("/topics?page=2") == "/topics?page=2"


def test_times() -> None:
    assert parse_time("") is None
    assert parse_time("1700000000123") == 1_700_000_000_123
    assert parse_time("2023-11-14T22:13:20") == parse_time("2023-11-15T06:13:20+08:00") == 1_700_000_000_000
    for nonsense in ("yesterday", "2023-13-01", "٣"):
        with pytest.raises(BadArguments):
            parse_time(nonsense)


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.9.10", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))
