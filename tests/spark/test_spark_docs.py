"""Tests that the examples of docs/spark and docs/sql.md run, and that the tables list every option."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_support import send_numbers
from wait_until import wait_until

from gantrymq.arrow.columns import VALUE
from gantrymq.cli.main import run
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.spark.columns import READ_TYPES, WRITE_TYPES
from gantrymq.spark.options import READ_OPTIONS, WRITE_OPTIONS
from gantrymq.spark.store.options import STORE_OPTIONS
from gantrymq.testing.embedded import EmbeddedCluster

DOCS = Path(__file__).parent.parent.parent / "docs"
#: In the order of the navigation. The examples of a page use names of earlier pages.
PAGES = ("index", "read", "write", "exactly-once", "lakes", "bodies", "operations")
TEXTS = {page: (DOCS / "spark" / f"{page}.md").read_text() for page in PAGES}


def tables(page: str, section: str) -> dict[str, list[list[str]]]:
    """Returns the rows of a section's tables, by the header of their first column."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXTS[page], re.DOTALL | re.MULTILINE)
    found: dict[str, list[list[str]]] = {}
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()]
        found.setdefault(header[0], []).extend(rows)
    return found


def names_of(rows: list[list[str]]) -> list[str]:
    """Returns the names in the first column. A row can have several."""
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]


def test_every_option_has_its_row() -> None:
    assert sorted(names_of(tables("read", "Options")["option"])) == sorted(READ_OPTIONS)
    own = [
        name
        for name in WRITE_OPTIONS
        if name not in READ_OPTIONS or name in ("nameServer", "context", "retryTimeoutMs")
    ]
    assert sorted(names_of(tables("write", "Options")["option"])) == sorted(own)
    assert sorted(names_of(tables("read", "Files of a broker")["option"])) == sorted(STORE_OPTIONS)


def test_the_columns_of_a_read() -> None:
    """The tables have the names, the order and the types of `columns.TABLE`."""
    rows = tables("read", "Columns")["column"]
    assert names_of(rows) == [*READ_TYPES, VALUE]
    assert [row[1].strip("`") for row in rows[:-1]] == [kind.simpleString() for kind in READ_TYPES.values()]


def test_the_columns_of_a_write() -> None:
    rows = tables("write", "Columns")["column"]
    assert {row[0].strip("`"): re.findall(r"`([^`]+)`", row[1]) for row in rows} == {
        name: [kind.simpleString() for kind in kinds] for name, kinds in WRITE_TYPES.items()
    }


def send_json(name_server: str) -> None:
    """Sends one order and one body that is not JSON."""

    async def send() -> None:
        async with Producer(name_server, "orders") as producer:
            order = b'{"id": 1, "at": "2026-01-31T12:00:00Z", "items": [{"name": "tea", "count": 2}]}'
            await producer.send(Message("json-orders", order))
            await producer.send(Message("json-orders", b"tea"))
            await producer.send(Message("settings", b"eu", keys="region"))

    asyncio.run(send())


def make_tier(directory: Path) -> None:
    """Makes a tier with at least one log file."""
    with EmbeddedCluster(mapped_file_size_commit_log=32 * 1024, tiered_store_file_path=str(directory)) as cluster:
        send_numbers(cluster, "orders", range(1000))
        wait_until(lambda: list((directory / "DefaultCluster" / "broker-a" / "segments").glob("*.json")))


@pytest.mark.spark
def test_the_snippets_run(spark: SparkSession, tmp_path: Path) -> None:
    """The snippets run in order, as a reader would run them. The first one gets the session of the test."""
    snippets = [
        (page, language, code)
        for page, text in TEXTS.items()
        for language, code in re.findall(r"^```(python|sh)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]
    assert len(snippets) == 14
    tier = tmp_path / "tier"
    make_tier(tier)
    with EmbeddedCluster(directory=tmp_path) as cluster:
        send_numbers(cluster, "orders", range(200))
        send_json(cluster.name_server)
        names: dict[str, object] = {}
        for page, language, snippet in snippets:
            code = snippet.replace("127.0.0.1:9876", cluster.name_server).replace("/data/", f"{tmp_path}/")
            code = code.replace("s3://messages/production", str(tier))
            if language == "sh":
                assert run(shlex.split(code)[1:]) == 0
            else:
                exec(compile(code, f"docs/spark/{page}.md", "exec"), names)
        back = spark.read.format("rocketmq").options(nameServer=cluster.name_server, subscribe="large-orders").load()
        # The numbers 100 to 199, tea and coffee.
        assert back.count() == 102
        bad = spark.read.format("rocketmq").options(nameServer=cluster.name_server, subscribe="bad-orders").load()
        assert [bytes(row.body) for row in bad.collect()] == [b"tea"]
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 200


@pytest.mark.spark
def test_the_statements_of_the_sql_page_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The statements run in order, in a session in which nothing was registered."""
    sql = spark.newSession()
    results = []
    with EmbeddedCluster(directory=tmp_path) as cluster:
        send_numbers(cluster, "orders", range(200))
        send_json(cluster.name_server)
        page = (DOCS / "sql.md").read_text()
        for language, snippet in re.findall(r"^```(sql|sh)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            code = snippet.replace("127.0.0.1:9876", cluster.name_server).replace("/data/", f"{tmp_path}/")
            if language == "sh":
                assert run(shlex.split(code)[1:]) == 0
                code = capsys.readouterr().out
                assert "VIEW `orders`" in code
            results += [
                sql.sql(statement).collect() for statement in re.split(r";\s*\Z|;\n", code) if statement.strip()
            ]
        back = spark.read.format("rocketmq").options(nameServer=cluster.name_server, subscribe="paid-orders").load()
        assert back.where("tags = 'paid'").count() == 101
    rows = [row for result in results for row in result]
    assert {"Even": 100, "Odd": 100}.items() <= {row[0]: row[1] for row in rows if len(row) == 2}.items()
    for name in ("messages", "outgoing"):
        sql.sql(f"DROP TABLE {name}")
