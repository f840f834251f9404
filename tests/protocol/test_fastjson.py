"""Tests of JSON bodies: fastjson's unquoted keys, null for absent values, and BodyError for invalid bodies."""

from __future__ import annotations

import gc
import json
import time
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from constants import change_constant
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.errors import BodyError
from gantrymq.protocol.bodies.route import BrokerData, TopicRouteData
from gantrymq.protocol.fastjson import (
    MAX_REQUEST_BYTES,
    bare_keys_quoted_in_steps,
    decode_json,
    decode_request_json,
    encode_json,
    quote_bare_keys,
)
from gantrymq.protocol.steps import finish

#: Strings that look like unquoted keys.
TEXT = st.one_of(st.text(), st.sampled_from(['{1:"x"}', ",2:3", '"', "\\", '{"1":2}', "{ -5 :", '\\",1:']))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT,
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(TEXT, children, max_size=4)
        | st.dictionaries(st.integers(-(2**63), 2**63 - 1), children, max_size=4)
    ),
    max_leaves=20,
)


def fastjson(value: Any, space: str = "") -> str:
    """Encodes JSON as fastjson does, with unquoted numeric keys."""
    if isinstance(value, dict):
        keys = [str(key) if isinstance(key, int) else fastjson(key) for key in value]
        pairs = [
            f"{space}{key}{space}:{space}{fastjson(v, space)}" for key, v in zip(keys, value.values(), strict=True)
        ]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + f"{space},{space}".join(fastjson(v, space) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


@given(VALUES, st.sampled_from(["", " ", "\n\t"]))
def test_bare_keys_are_quoted_and_nothing_else_changes(value: Any, space: str) -> None:
    assert json.loads(quote_bare_keys(fastjson(value, space).encode())) == json.loads(json.dumps(value))


@given(VALUES, st.sampled_from(["", " "]), st.integers(1, 40))
def test_in_steps_it_comes_to_the_same(value: Any, space: str, step: int) -> None:
    text = fastjson(value, space).encode()
    with pytest.MonkeyPatch.context() as patch:
        change_constant(patch, "fastjson._STEP_BYTES", step)
        assert finish(bare_keys_quoted_in_steps(text)) == quote_bare_keys(text)


@given(VALUES)
def test_standard_json_stays_as_it_is(value: Any) -> None:
    text = json.dumps(value).encode()
    assert quote_bare_keys(text) == text


@given(st.dictionaries(st.integers(0, 2**63 - 1), TEXT))
def test_maps_with_numeric_keys(addresses: dict[int, str]) -> None:
    broker = BrokerData("cluster", "broker", addresses)
    bare = f'{{"cluster":"cluster","brokerName":"broker","brokerAddrs":{fastjson(addresses)}}}'.encode()

    assert decode_json(bare, BrokerData) == broker
    assert decode_json(encode_json(broker), BrokerData) == broker
    assert json.loads(encode_json(broker))["brokerAddrs"] == {str(k): v for k, v in addresses.items()}


class Body(msgspec.Struct, rename="camel"):
    names: list[str] = []
    inner_table: dict[str, int] = {}
    count: int = 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", Body()),
        (b'{"names":null,"innerTable":null,"count":null}', Body()),
        (b'{"names":["a"],"innerTable":{"a":null,"b":2},"unknown":{1:{2:null}}}', Body(["a"], {"b": 2})),
        (b'{"count":"12","names":[]}', Body(count=12)),
        (b' {"count" : 1 } ', Body(count=1)),
    ],
)
def test_tolerance(text: bytes, expected: Body) -> None:
    assert decode_json(text, Body) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'{"count":"many"}',
        b'{"count":1',
        b'{"names":["\xff"]}',
        b'{"names":' + b"[" * 100_000,
        b'{"x":' + b"{1:" * 100_000,
        b"\x00" * 100,
        b'{"count":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_body(text: bytes) -> None:
    with pytest.raises(BodyError, match="Body"):
        decode_json(text, Body)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_a_body_error(data: bytes) -> None:
    with suppress(BodyError):
        decode_json(data, Body)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"' + b'\\"' * 500_000,
        b'{"a":' + b'"\\' * 500_000,
        b"{" + b" " * 1_000_000,
        b"{" + b",1" * 500_000,
        b"{" + b"1" * 1_000_000,
        b"{" * 1_000_000,
        b"{-" * 500_000,
    ],
)
def test_hostile_bodies_cost_no_more_than_their_size(text: bytes) -> None:
    start = time.thread_time()
    with pytest.raises(BodyError):
        decode_json(text, TopicRouteData)
    assert time.thread_time() - start < 5  # A quadratic algorithm would take an hour.


def test_a_request_is_not_read_for_long() -> None:
    """Non-standard JSON takes ten times as long to read, so its limit is a tenth of the size."""
    assert decode_request_json(b"{1:2}", dict[int, int]) == {1: 2}
    long = b"{1:2" + b" " * 300_000 + b"}"
    assert decode_json(long, dict[int, int]) == {1: 2}
    with pytest.raises(BodyError, match="no dict in JSON"):
        decode_request_json(long, dict[int, int])
    standard = b'{"1":2' + b" " * 300_000 + b"}"
    assert decode_request_json(standard, dict[int, int]) == {1: 2}
    with pytest.raises(BodyError, match="at most"):
        decode_request_json(b" " * (MAX_REQUEST_BYTES + 1), dict[int, int])


@pytest.mark.parametrize("text", [b'{"names":[' + b'{"":0},' * 30_000 + b"{}]}", b'{"names":[' + b"[[]]," * 60_000])
def test_the_objects_of_a_large_body_are_not_searched_for_cycles_while_it_is_read(text: bytes) -> None:
    collections: list[str] = []

    def count(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    # Otherwise a collection may be due before the body is read, in addition to the one after it.
    gc.collect()
    gc.callbacks.append(count)
    try:
        with suppress(BodyError):
            kept = decode_json(text, dict[str, list[dict[str, int]]])
            during = len(collections)
            assert len(kept["names"]) == 30_001
            assert during <= 2
    finally:
        gc.callbacks.remove(count)
    assert gc.isenabled()
