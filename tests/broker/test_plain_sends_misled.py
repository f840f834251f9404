"""Attempts to mislead the header cache of native code.

No client can give another client's header a wrong meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest
from plain_sends_support import PLAIN, WAYS, Client, frame, known, running, stored

from gantrymq.kernels import native
from gantrymq.protocol.codes import ResponseCode

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

BORN = 1_700_000_000_555
#: As long as `PLAIN`, but without any property.
NONE = "A" * len(PLAIN)


def with_code(data: bytes, code: int) -> bytes:
    """Replaces the request code in a frame's header. The new code must have the same number of digits."""
    assert data.count(b'"code":310,') + data.count(b"\x01\x36\x00", 8, 11) == 1
    return data.replace(b'"code":310,', b'"code":%d,' % code).replace(
        b"\x01\x36\x00", code.to_bytes(2, "big") + b"\0", 1
    )


def sent_by(way: str, topic: str, body: bytes = b"body") -> bytes:
    return frame(way, 77, body, b=topic, g=BORN)


@pytest.mark.parametrize("way", WAYS)
async def test_a_refused_header_is_not_that_of_the_next_send(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends to a missing topic, and then to an existing one, with the same number, born timestamp and properties."""
    async with running(tmp_path, monkeypatch, auto_create_topic_enable=False) as broker:
        client = Client(broker)
        client.read(frame(way, 1, b="trades"))
        client.read(sent_by(way, "nobody") + sent_by(way, "trades"))
        queue = broker.store.queue("trades", 0)
        assert queue.max_offset == 2
        [answer] = client.answers(frame(way, 78, b="nobody"))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert queue.max_offset == 2


@pytest.mark.parametrize("code", [320, 325, 999])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "java V1"])
async def test_a_request_of_another_kind_is_no_send(
    way: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches and replies have headers with the same fields."""
    async with running(tmp_path, monkeypatch) as broker:
        client = Client(broker)
        client.read(frame(way, 1))
        other = with_code(sent_by(way, "trades"), code)
        client.read(other + sent_by(way, "orders"))
        queue = broker.store.queue("orders", 0)
        assert (queue.max_offset, known(broker)) == (2, 0)
        client.read(other)
        assert queue.max_offset == 2


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_is_no_send(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = Client(broker)
        client.read(frame(way, 1))
        answer = frame(way, 77, g=BORN, flag=1, properties=PLAIN)
        client.read(answer + sent_by(way, "orders"))
        assert client.read(answer) == b""
        assert broker.store.queue("orders", 0).max_offset == 2


def in_binary(fields: dict[str, str], opaque: int) -> bytes:
    """Returns a header with long field names. One of its values contains encoded fields with short names."""

    def field(name: str, value: str) -> bytes:
        return pack(">H", len(name)) + name.encode() + pack(">i", len(value)) + value.encode()

    short = b"".join(field(name, fields[name]) for name in "ghi").decode()
    values = {name: value for name, value in fields.items() if len(name) > 1} | {"other": short}
    ext = b"".join(field(name, value) for name, value in values.items())
    header = pack(">hBhiiii", 10, 0, 479, opaque, 0, 0, len(ext)) + ext
    return pack(">II", 4 + len(header), 1 << 24 | len(header)) + header


def with_the_code_last(fields: dict[str, str], opaque: int) -> bytes:
    header = json.dumps({"extFields": fields, "opaque": opaque, "code": 10}, separators=(",", ":")).encode()
    return pack(">II", 4 + len(header), len(header)) + header


def with_two_codes(fields: dict[str, str], opaque: int) -> bytes:
    command = {"code": 310, "extFields": fields, "opaque": opaque, "other": 0}
    header = json.dumps(command, separators=(",", ":")).replace("other", "code").replace(":0}", ":10}").encode()
    return pack(">II", 4 + len(header), len(header)) + header


@pytest.mark.parametrize("write", [in_binary, with_the_code_last, with_two_codes])
async def test_a_send_with_long_names_may_have_short_ones_that_mean_nothing(
    write: Callable[[dict[str, str], int], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(opaque: int, born: str, properties: str) -> bytes:
        fields = {"producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
        fields |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000123", "flag": "0", "properties": NONE}
        return write(fields | {"g": born, "h": "0", "i": properties}, opaque)

    results = []
    for natively in (False, True):
        async with running(tmp_path / str(natively), monkeypatch, natively=natively) as broker:
            client = Client(broker)
            for opaque in (1, 2):
                client.read(sent(opaque, "1700000000123", NONE))
            client.read(sent(3, "1800000000000", PLAIN))
            results.append(stored(broker))
            assert broker.store.queue("orders", 0).max_offset == 3
    assert results[0] == results[1]
