"""SQL92: Apache's filter agrees with our table, and Apache's consumer receives the same from both brokers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import Sent, _lines, _run, produce
from servers import gantry_broker, gantry_namesrv, java_broker

pytestmark = pytest.mark.interop(feature="filters", clients="java", servers="{namesrv}")

TABLE = Path(__file__).parent.parent / "tests" / "filter" / "sql_table.jsonl"
LETTERS = {True: "T", False: "F", None: "N", "error": "E"}
BROKERS = {"java": java_broker, "gantry": gantry_broker}


@pytest.mark.interop(servers="java")
def test_the_table_is_what_java_says() -> None:
    properties, *table = [json.loads(line) for line in TABLE.read_text().splitlines()]
    lines = [json.dumps({"properties": properties})]
    lines += [json.dumps({"expression": expression}) for expression, _ in table]

    answers = _lines(_run("org.gantrymq.interop.EvaluateFilter", stdin="\n".join(lines)))

    of_java = [[a["expression"], "".join(LETTERS[r] for r in a.get("results", ()))] for a in answers]
    assert of_java == table


@pytest.fixture(scope="module", params=BROKERS)
def namesrv(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts a cluster with the tested broker. SQL92 filters are enabled for Java's broker."""
    directory = tmp_path_factory.mktemp(f"sql-{request.param}")
    server = gantry_namesrv(directory / "namesrv")
    try:
        broker = BROKERS[request.param](directory / "broker", server.address, enablePropertyFilter="true")
        try:
            yield server.address
        finally:
            broker.kill()
    finally:
        server.kill()


def sql_consume(namesrv: str, topic: str, expression: str, count: int, header: str = "JSON") -> list[dict[str, object]]:
    arguments = (namesrv, f"group_{topic}", topic, expression, str(count), "60")
    result = _run("org.gantrymq.interop.SqlConsume", *arguments, serialize_type=header)
    assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-2000:]
    return _lines(result)


@pytest.mark.parametrize("header", ["JSON", "ROCKETMQ"])
def test_apaches_consumer_gets_what_matches(namesrv: str, topic: str, header: str) -> None:
    sent = [
        Sent(f"{colour} {number}".encode(), tags="t", properties=(("colour", colour), ("число", number)))
        for colour in ("red", "blue", "it's")
        for number in ("5", "50", "many")
    ] + [Sent(b"without")]
    produce(namesrv, topic, [message.line() for message in sent])

    received = sql_consume(namesrv, topic, "colour IN ('red', 'it''s') AND TAGS IS NOT NULL", 6, header)

    bodies = sorted(base64.b64decode(str(line["body"])) for line in received)
    assert bodies == sorted(m.body for m in sent if m.body.startswith((b"red", b"it's")))


def test_a_bad_expression_is_refused_at_the_start(namesrv: str, topic: str) -> None:
    produce(namesrv, topic, [Sent(b"x").line()])
    (answer,) = sql_consume(namesrv, topic, "colour >", 1)
    assert "CODE: 23" in str(answer["refused"])
