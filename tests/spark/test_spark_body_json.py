"""Tests of JSON bodies decoded into typed values."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.arrow.body_values import ValueDecoder
from gantrymq.errors import ConfigError
from gantrymq.protocol.fastjson import encode_json
from gantrymq.spark.bodies.json_bodies import json_decoder

ITEM = pa.struct([("name", pa.string()), ("count", pa.int32())])
ORDER = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("total", pa.decimal128(5, 2)),
        ("paid", pa.bool_()),
        ("rate", pa.float64()),
        ("share", pa.float32()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("data", pa.binary()),
        ("items", pa.list_(ITEM)),
        ("labels", pa.map_(pa.string(), pa.string())),
    ]
)


def decoded(kind: pa.DataType, *bodies: bytes | None) -> tuple[list[Any], dict[int, str]]:
    values, errors = ValueDecoder(json_decoder(kind), kind).decode(bodies)
    assert values.type == kind
    return values.to_pylist(), errors


def test_every_type() -> None:
    body = (
        b'{"id": 7, "total": 12.50, "paid": true, "rate": 3, "at": "2026-01-31T13:00:00+01:00", "day": "2026-01-31",'
        b'"data": "AAE=", "items": [{"name": "tea", "count": 2, "colour": "green"}, null], "labels": {"a": "b"}}'
    )
    (order,), errors = decoded(ORDER, body)
    assert not errors
    assert order == {
        "id": 7,
        "total": Decimal("12.50"),
        "paid": True,
        "rate": 3.0,
        "share": None,
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "day": date(2026, 1, 31),
        "data": b"\0\1",
        "items": [{"name": "tea", "count": 2}, None],
        "labels": [("a", "b")],
    }


def test_what_is_missing_is_null() -> None:
    (order, nothing), errors = decoded(ORDER, b'{"id": 1, "items": [{}], "total": null}', None)
    assert (order["id"], order["items"], order["total"], order["labels"]) == (
        1,
        [{"name": None, "count": None}],
        None,
        None,
    )
    assert nothing is None
    assert not errors


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b'{"id": 1} 2', "trailing"),
        (b"null", "Expected `object`"),
        (b"[1]", "Expected `object`"),
        (b'{"paid": true}', "missing required field `id`"),
        (b'{"id": null}', r"Expected `int`.*\$\.id"),
        (b'{"id": "1"}', r"\$\.id"),
        (b'{"id": 9223372036854775808}', r"\$\.id"),
        (b'{"id": 1, "items": [{"count": 2147483648}]}', r"\$\.items\[0\]\.count"),
        (b'{"id": 1, "rate": 1e999}', r"\$\.rate"),
        (b'{"id": 1, "share": 1e39}', r"\$\.share"),
        (b'{"id": 1, "at": "yesterday"}', r"\$\.at"),
        (b'{"id": 1, "at": "10000-01-01T00:00:00Z"}', r"\$\.at"),
        (b'{"id": 1, "data": "?"}', r"\$\.data"),
        (b'{"id": 1, "labels": {"a": "\xff"}}', "no JSON"),
        (b'{"id": 1, "total": 1234.5}', r"doesn't fit decimal128\("),
    ],
)
def test_one_bad_body_among_others(body: bytes, problem: str) -> None:
    values, errors = decoded(ORDER, b'{"id": 1}', body, b'{"id": 3}')
    assert [value and value["id"] for value in values] == [1, None, 3]
    assert list(errors) == [1]
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(errors[1])


def test_numbers_with_a_far_exponent() -> None:
    """Such numbers are neither read as 0 nor do they crash the process. The program prints the exponent first."""
    program = """
import pyarrow as pa
from gantrymq.arrow.body_values import ValueDecoder
from gantrymq.spark.bodies.json_bodies import json_decoder
price = pa.decimal128(38, 18)
kind = pa.struct([("price", price), ("prices", pa.list_(price)), ("by_name", pa.map_(pa.string(), price))])
for exponent in (-57, -77, -100, -10_000_000, 10_000_000):
    print(exponent, flush=True)
    number = b"1e%d" % exponent
    bodies = [b'{"price": %b}' % number, b'{"prices": [%b]}' % number, b'{"by_name": {"a": %b}}' % number]
    values, errors = ValueDecoder(json_decoder(kind), kind).decode(bodies)
    assert values.to_pylist() == [None] * 3, values
    assert len(errors) == 3
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_types_that_json_has_nothing_for() -> None:
    with pytest.raises(ConfigError, match=r"value\.a is duration"):
        json_decoder(pa.struct([("a", pa.duration("us"))]))
    with pytest.raises(ConfigError, match="keys of int32"):
        json_decoder(pa.map_(pa.int32(), pa.string()))
    # Spark marks these types like this. They look like a struct of binaries but are not.
    for name in ("variant", "geometry", "geography"):
        marked = pa.field("bytes", pa.binary(), nullable=False, metadata={name: "true"})
        with pytest.raises(ConfigError, match=f"value is {name}"):
            json_decoder(pa.struct([marked]))


@given(
    st.lists(
        st.fixed_dictionaries(
            {"name": st.none() | st.text(), "count": st.none() | st.integers(-(2**31), 2**31 - 1)},
        )
    )
)
def test_what_was_encoded_comes_back(items: list[dict[str, Any]]) -> None:
    assert decoded(ITEM, *map(encode_json, items)) == (items, {})


@given(st.lists(st.binary() | st.none(), max_size=5))
def test_any_bytes_are_a_value_or_an_error(bodies: list[bytes | None]) -> None:
    values, errors = decoded(ITEM, *bodies)
    assert len(values) == len(bodies)
    assert all((value is None) == (place in errors or bodies[place] is None) for place, value in enumerate(values))
