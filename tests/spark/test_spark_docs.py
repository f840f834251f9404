"""docs/spark.md: what it shows is run, and its tables have every option."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_support import send_numbers

from gantrymq.cli.main import run
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.spark.options import READ_OPTIONS, WRITE_OPTIONS
from gantrymq.spark.row_messages import COLUMNS
from gantrymq.spark.store.options import STORE_OPTIONS
from gantrymq.testing.embedded import EmbeddedCluster

DOCUMENT = (Path(__file__).parent.parent.parent / "docs" / "spark.md").read_text()


def first_cells(section: str) -> list[str]:
    """The first column of the tables between that heading and the next of its kind."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", DOCUMENT, re.DOTALL | re.MULTILINE)
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_every_option_has_its_row() -> None:
    assert sorted(first_cells("Reading")) == sorted(READ_OPTIONS)
    own = [
        name
        for name in WRITE_OPTIONS
        if name not in READ_OPTIONS or name in ("nameServer", "context", "retryTimeoutMs")
    ]
    assert sorted(first_cells("Writing")) == sorted([*COLUMNS, *own])
    assert sorted(first_cells("A store's files")) == sorted(STORE_OPTIONS)


def test_links_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)$", DOCUMENT, re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    for target in re.findall(r"\]\(([^)]+)\)", DOCUMENT):
        if target.startswith("#"):
            assert target[1:] in anchors
        else:
            assert (Path(__file__).parent.parent.parent / "docs" / target.partition("#")[0]).exists(), target


def send_json(name_server: str) -> None:
    """One order and one body that is none."""

    async def send() -> None:
        async with Producer(name_server, "orders") as producer:
            order = b'{"id": 1, "at": "2026-01-31T12:00:00Z", "items": [{"name": "tea", "count": 2}]}'
            await producer.send(Message("json-orders", order))
            await producer.send(Message("json-orders", b"tea"))

    asyncio.run(send())


@pytest.mark.spark
def test_the_snippets_run(spark: SparkSession, tmp_path: Path) -> None:
    """One after the other, as a reader would; the first one's session is the test's."""
    snippets = re.findall(r"^```(python|sh)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert len(snippets) == 10
    with EmbeddedCluster(directory=tmp_path) as cluster:
        send_numbers(cluster, "orders", range(200))
        send_json(cluster.name_server)
        names: dict[str, object] = {}
        for language, snippet in snippets:
            code = snippet.replace("127.0.0.1:9876", cluster.name_server).replace("/data/", f"{tmp_path}/")
            if language == "sh":
                assert run(shlex.split(code)[1:]) == 0
            else:
                exec(compile(code, "docs/spark.md", "exec"), names)
        back = spark.read.format("rocketmq").options(nameServer=cluster.name_server, subscribe="large-orders").load()
        # 100 to 199, tea and coffee.
        assert back.count() == 102
        bad = spark.read.format("rocketmq").options(nameServer=cluster.name_server, subscribe="bad-orders").load()
        assert [bytes(row.body) for row in bad.collect()] == [b"tea"]
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 200
