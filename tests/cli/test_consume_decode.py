"""Tests of `gantry consume --decode`: bodies as JSON, and the error for a body that cannot be decoded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq import Message, Producer, SyncProducer
from gantrymq.cli.main import run
from gantrymq.codecs import AvroCodec
from gantrymq.testing.embedded import EmbeddedCluster

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "what", "type": "string"}]}
TOPICS = {
    "avro-orders": [AvroCodec(SCHEMA).encode({"what": what}) for what in ("apples", "pears")],
    "json-orders": [b'{ "what": "figs",\n "count": 3 }', b'{"what": "plums", "count": "many"}', b"[]"],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster, SyncProducer(Producer(cluster.name_server, "shop")) as producer:
        for topic, bodies in TOPICS.items():
            queue = producer.queues(topic)[0]
            for body in bodies:
                producer.send(Message(topic, body), queue=queue)
        yield cluster


def test_avro(cluster: EmbeddedCluster, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (schema := tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))
    command = ["consume", "avro-orders", "-n", cluster.name_server, "-e", "--decode", f"avro:{schema}"]
    assert run(command) == 0
    assert capsysbinary.readouterr().out == b'{"what":"apples"}\n{"what":"pears"}\n'
    assert run([*command, "--json", "-c", "1"]) == 0
    line = json.loads(capsysbinary.readouterr().out)
    assert line["value"] == {"what": "apples"}
    assert line["body"].encode() == TOPICS["avro-orders"][0]
    assert run([*command, "--json"]) == 0
    (tmp_path / "lines").write_bytes(capsysbinary.readouterr().out)
    # The written lines can be sent again without change.
    assert run(["produce", "copies", "-n", cluster.name_server, "--json", str(tmp_path / "lines")]) == 0
    assert run(["consume", "copies", "-n", cluster.name_server, "-e", "--decode", f"avro:{schema}"]) == 0
    assert sorted(capsysbinary.readouterr().out.splitlines()) == [b'{"what":"apples"}', b'{"what":"pears"}']


def test_a_module_beside_it_and_a_body_that_is_none(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text("class Order(__import__('msgspec').Struct):\n    what: str\n    count: int\n")
    arguments = ["consume", "json-orders", "-n", cluster.name_server, "-e", "--decode", "json:orders:Order"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gantrymq.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    # The valid message before the error is written.
    assert (done.returncode, done.stdout) == (1, '{"what":"figs","count":3}\n')
    assert " at offset 1 of queue " in done.stderr
    assert "of json-orders on " in done.stderr
    assert "no JSON of type Order: Expected `int`, got `str` - at `$.count`" in done.stderr


def test_names_of_nothing(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", "json-orders", "-n", cluster.name_server, "-e", "--decode", "xml"]) == 1
    assert "'xml' names no codec" in capsys.readouterr().err
