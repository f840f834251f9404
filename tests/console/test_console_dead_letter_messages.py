"""Dead-letter messages: filtered or selected ones are listed, exported and resent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from console_support import browser, cluster, html_of, json_of, producer, text_of, visitor
from constants import change_constant
from test_console_access import change
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.console.operations import MAX_RUNNING, Operation, Operations
from gantrymq.console.settings import Settings
from gantrymq.errors import ClientError, GantryError
from gantrymq.protocol.message import Message
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster", "producer", "visitor"]


@asynccontextmanager
async def mourners(
    cluster: EmbeddedCluster, producer: SyncProducer, visitor: httpx.AsyncClient, name: str, count: int = 4
) -> AsyncIterator[list[bytes]]:
    """Creates a group with this many dead-letter messages. Yields the messages that it receives from now on."""
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic(name, queues=1)
    for number in range(count):
        producer.send(
            Message(name, b"letter %d" % number, keys=[f"key-{number}"], tags="odd" if number % 2 else "even")
        )
    fails = True
    seen: list[bytes] = []

    async def consume(message: Message) -> None:
        if fails:
            raise ValueError("not yet")
        seen.append(message.body)

    consumer = PushConsumer(cluster.name_server, name, consume, start_from="earliest", max_reconsume_times=0)
    consumer.subscribe(name)
    async with consumer:

        async def died() -> bool:
            return len((await json_of(visitor, "dead-letter-messages", group=name))["rows"]) == count

        await until(died)
        fails = False
        yield seen


async def ended(visitor: httpx.AsyncClient, answer: httpx.Response) -> Any:
    """Returns the background task that a response names, after its end."""
    assert answer.status_code == 200, answer.text
    number = int(answer.json()["done"].split()[1])

    async def over() -> Any:
        operations = (await json_of(visitor, "operations"))["operations"]
        return next((work for work in operations if work["id"] == number and work["ended_ms"]), None)

    return await until(over)


async def test_all_that_a_filter_finds(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    async with mourners(cluster, producer, visitor, "filtered") as seen:
        for arguments, found in (
            ({}, {0, 1, 2, 3}),
            ({"search": "odd"}, {1, 3}),
            ({"search": "key-2"}, {2}),
            ({"search": "letter 0"}, {0}),
            ({"topic": "filtered", "search": "even"}, {0, 2}),
            ({"topic": "another"}, set()),
            ({"end": "2020-01-01T00:00"}, set()),
            ({"begin": "2020-01-01T00:00"}, {0, 1, 2, 3}),
        ):
            page = await json_of(visitor, "dead-letter-messages", group="filtered", **arguments)
            assert {row["start"] for row in page["rows"]} == {f"letter {n}" for n in found}, arguments
            assert {row["topic"] for row in page["rows"]} <= {"filtered"}
            lines = (await visitor.get("/dead-letters/export", params={"group": "filtered", **arguments})).text
            exported = [msgspec.json.decode(line) for line in lines.splitlines()]
            assert {one["body"]["text"] for one in exported} == {f"letter {n}" for n in found}, arguments
        answer = await change(visitor, "resend-dead-letters", group="filtered", search="odd", max_messages=1)
        work = await ended(visitor, answer)
        assert (work["state"], work["about"], work["of"]) == ("done", "filtered", 4)
        assert work["so_far"].startswith("1 dead letters resent")
        await until(lambda: len(seen) == 1)
        # No message is resent a second time, unless requested.
        work = await ended(visitor, await change(visitor, "resend-dead-letters", group="filtered", search="odd"))
        assert work["so_far"].startswith("1 dead letters resent")
        await until(lambda: len(seen) == 2)
        assert set(seen) == {b"letter 1", b"letter 3"}
        again = await change(visitor, "resend-dead-letters", group="filtered", search="even", begin="1", again="true")
        assert (await ended(visitor, again))["so_far"] == "2 dead letters resent, 2 skipped, 0 unreadable"
        await until(lambda: len(seen) == 4)
        assert len(set(seen)) == 4


async def test_those_that_somebody_chose(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    async with mourners(cluster, producer, visitor, "chosen") as seen:
        rows = (await json_of(visitor, "dead-letter-messages", group="chosen"))["rows"]
        places = [f"{row['broker']}:{row['queue_id']}:{row['offset']}" for row in rows]
        html = await html_of(visitor, "dead-letter-messages", group="chosen")
        assert all(f'name="places" value="{place}"' in html for place in places)
        wanted = [place for place, row in zip(places, rows, strict=True) if row["start"] in ("letter 1", "letter 2")]
        # A deleted message counts as unreadable. A message that is selected twice is resent once.
        answer = await change(
            visitor, "resend-letters", group="chosen", places=[*wanted, wanted[0], f"{rows[0]['broker']}:0:77"]
        )
        work = await ended(visitor, answer)
        assert (work["state"], work["of"]) == ("done", 3)
        assert work["so_far"] == "2 dead letters resent, 0 skipped, 1 unreadable"
        await until(lambda: len(seen) == 2)
        assert set(seen) == {b"letter 1", b"letter 2"}
        # The position for resending all other messages is unchanged.
        work = await ended(visitor, await change(visitor, "resend-dead-letters", group="chosen"))
        assert work["so_far"].startswith("4 dead letters resent")
        place = dict(zip(("broker", "queue", "offset"), places[0].rsplit(":", 2), strict=True))
        one = await html_of(visitor, "message", topic="%DLQ%chosen", **place)
        assert "Resend this dead letter of group chosen?" in one
        assert f'name="places" value="{places[0]}"' in one


async def test_what_is_refused_at_once(visitor: httpx.AsyncClient) -> None:
    for form in ({"max_messages": "0"}, {"max_messages": "10001"}, {"begin": "yesterday"}):
        assert (await change(visitor, "resend-dead-letters", group="g", **form)).status_code == 400
    too_many = [f"broker-a:0:{n}" for n in range(201)]
    for places in ("", "broker-a", "broker-a:0:-1", ":0:1", "broker-a:0:1\nb", too_many):
        assert (await change(visitor, "resend-letters", group="g", places=places)).status_code == 400
    assert (await change(visitor, "stop-operation", id="99")).status_code == 502
    assert (await visitor.get("/dead-letters/export", params={"group": "g", "end": "x"})).status_code == 400
    assert (await json_of(visitor, "operations"))["operations"] == []
    assert "No operations." in await html_of(visitor, "operations")


async def test_a_group_without(visitor: httpx.AsyncClient) -> None:
    page = await json_of(visitor, "dead-letter-messages", group="nobodys")
    assert (page["rows"], page["token"], page["looked"]) == ([], None, 0)
    assert (await json_of(visitor, "dead-letter-messages"))["group"] == ""
    work = await ended(visitor, await change(visitor, "resend-dead-letters", group="nobodys"))
    assert work["so_far"] == "0 dead letters resent, 0 skipped, 0 unreadable"
    assert "0 dead letters resent" in text_of(await html_of(visitor, "operations"))
    work = await ended(visitor, await change(visitor, "resend-dead-letters", group="with spaces"))
    assert work["state"] == "failed"


@pytest.mark.parametrize("bound", ["letters", "bytes"])
async def test_a_page_looks_at_so_many(
    bound: str,
    visitor: httpx.AsyncClient,
    cluster: EmbeddedCluster,
    producer: SyncProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a filter finds few messages, a page ends in time. The next page continues, and no message is missing."""
    async with mourners(cluster, producer, visitor, f"rare-{bound}", 30):
        if bound == "letters":
            change_constant(monkeypatch, "dead_letter_messages.MAX_READ", 5)
        else:
            change_constant(monkeypatch, "queue_reader.MAX_READ_BYTES", 5 * len(b"letter 0"))
        # No message matches on the first page. It leads to the next one.
        html = await html_of(visitor, "dead-letter-messages", group=f"rare-{bound}", search="key-29", size=4)
        assert "The next page continues the search." in html
        assert 'rel="next"' in html
        found, pages, token = [], 0, ""
        while token is not None:
            page = await json_of(
                visitor, "dead-letter-messages", group=f"rare-{bound}", search="key-2", size=4, token=token
            )
            found += [row["start"] for row in page["rows"]]
            token, pages = page["token"], pages + 1
            assert page["looked"] < 30
        assert sorted(found) == sorted(f"letter {n}" for n in (2, *range(20, 30)))
        assert pages > 2


async def test_every_end_is_in_the_audit_log(cluster: EmbeddedCluster, producer: SyncProducer, tmp_path: Path) -> None:
    async with browser(Settings(cluster.name_server, directory=tmp_path)) as visitor:
        await ended(visitor, await change(visitor, "resend-dead-letters", group="audited"))
    lines = [msgspec.json.decode(line) for line in (tmp_path / "audit.log").read_bytes().splitlines()]
    assert [line["outcome"].rstrip(".0123456789") for line in lines] == [
        "requested",
        "operation 1 is running",
        "0 dead letters resent, 0 skipped, 0 unreadable",
    ]


# -- background tasks -----------------------------------------------------------------------------------------------


async def test_a_work_is_stopped() -> None:
    works, outcomes = Operations(), []
    step = asyncio.Event()

    async def perform(work: Operation) -> str:
        for number in range(100):
            work.report(number, f"{number} are done")
            step.set()
            await asyncio.sleep(0)
        return "all are done"

    work = works.begin("count", "numbers", perform, outcomes.append)
    assert list(works) == [work]
    await step.wait()
    works.stop(work.id)
    await until(lambda: outcomes)
    assert (work.state, work.so_far) == ("stopped", outcomes[0])
    assert outcomes[0].startswith("stopped: ")
    assert work.done < 99
    with pytest.raises(ClientError):
        works.stop(work.id)


async def test_works_end_with_their_owner() -> None:
    works, outcomes = Operations(), []

    async def perform(work: Operation) -> str:
        await asyncio.Event().wait()
        return "never"

    for _ in range(MAX_RUNNING):
        works.begin("wait", "nothing", perform, outcomes.append)
    with pytest.raises(GantryError, match="operations are running"):
        works.begin("wait", "nothing", perform, outcomes.append)
    await works.close()
    assert outcomes == ["cancelled"] * MAX_RUNNING
    assert all(work.state == "failed" and work.ended_ms for work in works)


async def test_a_work_that_fails() -> None:
    works, outcomes = Operations(), []

    async def perform(work: Operation) -> str:
        work.report(3, "3 are done")
        raise GantryError("no more")

    work = works.begin("fail", "", perform, outcomes.append)
    await until(lambda: outcomes)
    assert (work.state, work.so_far) == ("failed", "failed: no more (3 are done)")
