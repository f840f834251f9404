"""Tests of SQL filters: errors, limits, arbitrary input, and the types that sql_table.jsonl cannot express."""

from __future__ import annotations

import gc
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantrymq.errors import ClientError
from gantrymq.filter import sql
from gantrymq.filter.expression import MAX_DEPTH
from gantrymq.filter.sql import MAX_LENGTH, compile_in_steps, compile_sql
from gantrymq.protocol.properties import encode_properties


def matches(expression: str, **properties: str) -> bool:
    return compile_sql(expression)(encode_properties(properties))


def test_a_message_is_chosen_by_its_properties() -> None:
    expression = "amount BETWEEN 100 AND 200 AND region IN ('eu', 'us') AND NOT (test IS NOT NULL)"
    assert matches(expression, amount="150", region="eu")
    assert not matches(expression, amount="250", region="eu")
    assert not matches(expression, amount="150", region="eu", test="1")
    assert not matches(expression, region="eu")
    assert matches("name = 'Żółć ''quoted'''", name="Żółć 'quoted'")


def test_a_failed_conversion_decides_alone() -> None:
    assert not matches("a > 5 OR b = 'x'", a="many", b="x")
    assert matches("b = 'x' OR a > 5", a="many", b="x")


def test_properties_are_found_whole() -> None:
    assert not matches("a = '1'", aa="1", ba="1")
    assert not matches("a = '1'", b="a\x011")
    assert matches("a = '1'", b="2", a="1")
    # Clients in other languages can omit the last separator.
    assert compile_sql("a = '1'")(b"b\x012\x02a\x011")


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "column 1: the expression isn't complete"),
        ("a =", "column 4: the expression isn't complete, behind 'a ='"),
        ("a == 5", r"column 4: '=' can't stand here \(equal is a single =\)"),
        ("a != 5", r"column 3: '!' can't stand here \(unequal is <>\)"),
        ('a = "x"', r"column 5: '\"' can't stand here \(strings stand in single quotes\)"),
        ("a = 'x", "column 5: \"'\" can't stand here .*ends with a single quote"),
        ("a LIKE 'x%'", "column 3: 'LIKE' can't stand here .use CONTAINS"),
        ("a + 1 > 2", "column 3: .* no arithmetic"),
        ("a = 1 AND 5", "column 7: a condition is needed here"),
        ("a > 'x'", "column 3: > compares numbers"),
        ("a = NULL", "column 3: NULL is compared by IS NULL"),
        ("TRUE = 5", "column 6: TRUE and FALSE are compared with conditions"),
        ("a BETWEEN 5 AND 3", "column 3: of BETWEEN the first"),
        ("a BETWEEN 'x' AND 3", "column 3: BETWEEN compares numbers"),
        ("5 IN ('5')", "column 3: before IN stands a property"),
        ("a = 9223372036854775808", "column 5: the number is greater than 9223372036854775807"),
        ("a = " + "9" * 5000, "column 5: the number is greater"),
        ("a = 0.0", "column 5: a number with a point"),
        ("a = '\ud800'", "no Unicode text"),
    ],
)
def test_an_error_names_the_place_and_the_remedy(expression: str, problem: str) -> None:
    with pytest.raises(ClientError, match=problem):
        compile_sql(expression)


def test_length_is_limited() -> None:
    longest = "a = '" + "x" * (MAX_LENGTH - 6) + "'"
    assert not matches(longest, a="x")
    with pytest.raises(ClientError, match=f"{MAX_LENGTH + 1} characters: at most {MAX_LENGTH}"):
        compile_sql(longest + " ")


@pytest.mark.parametrize(("part", "most"), [("a=1", 2000), ("a CONTAINS 'x'", 250), ("a ENDSWITH 'x'", 2000)])
def test_what_is_looked_for_is_limited(part: str, most: int) -> None:
    most = min(most, (MAX_LENGTH + 4) // (len(part) + 4))
    assert matches(" OR ".join([part] * most), a="1") == (part == "a=1")
    if most in (2000, 250):
        with pytest.raises(ClientError, match="too much to look for: 2000 properties, or 250 CONTAINS"):
            compile_sql(" OR ".join([part] * (most + 1)))


def test_many_properties_are_found_as_few_are() -> None:
    """Both ways of finding properties give the same result.

    A filter with many properties decodes all of them into a dictionary. It takes the first value of a name, and ignores
    empty ones.
    """
    for few in ("a = '1'", "b IS NULL", "a = '1' AND NOT (c = 5)"):
        many = " AND ".join(["z IS NULL"] * 20 + [few])
        for properties in (b"a\x011\x02a\x012\x02", b"a\x01\x02b\x01\x02", b"c\x015", b"a\x011", b"=a\x011\x02", b""):
            assert compile_sql(many)(properties) == compile_sql(few)(properties), (few, properties)


def test_a_number_of_thousands_of_digits_is_none() -> None:
    for digits in ("1" * 32_000, "0" * 32_000):
        assert not matches("a = 1", a=digits)
        assert not matches("a < 1.5", a=digits)
        assert not matches("a < b", a=digits, b="1")
    assert matches("a = 1", a="0" * 500 + "1")


def test_compiling_in_steps() -> None:
    """Both a compiled filter and a failed compilation are cached."""
    good, bad = " OR ".join(["c = 1"] * 1000), " OR ".join(["c = 1"] * 1000) + " OR"
    steps = list(compile_in_steps(good))
    assert len(steps) > 20
    assert not list(compile_in_steps(good))
    with pytest.raises(ClientError, match="isn't complete"):
        compile_sql(bad)
    with pytest.raises(ClientError, match="isn't complete"):
        next(compile_in_steps(bad))


def test_what_is_kept_is_limited() -> None:
    for n in range(100):
        compile_sql(f"a = '{'x' * 10_000}{n}'")
    kept = sum(map(len, sql.compiled_filters))
    assert 240_000 < kept <= 256 * 1024
    assert sql.compiled_filters.characters == kept


@pytest.mark.parametrize(
    "part",
    [
        "a = {} AND b <> 'x{}'",
        "c BETWEEN {} AND 5000000000 OR NOT (d = {}.5)",
        "e IN ('x{}', 'y', 'z') AND f > g{}",
        "(h STARTSWITH 'x{}') = TRUE OR i IS NULL OR -j{} = 5",
    ],
)
def test_the_collector_of_cycles_sees_little_of_a_filter(part: str) -> None:
    """A full collection would visit each object of each filter and stop all other work meanwhile."""
    compile_sql("a = 1")
    # Each filter creates as many objects. Other threads of the process can create some meanwhile.
    assert min(_tracked_objects(part, first) for first in (0, 250, 500)) < 50


def _tracked_objects(part: str, first: int) -> int:
    """Returns the number of objects of a filter that the collector visits."""
    text = " OR ".join(part.format(n, n) for n in range(first, first + 250))
    gc.collect()
    before = len(gc.get_objects())
    matches = compile_sql(text)
    # The collector stops tracking a tuple only after it has stopped tracking the tuples in it.
    for _ in range(5):
        gc.collect()
    count = len(gc.get_objects()) - before
    assert not matches(b"i\x011\x02")
    return count


@pytest.mark.parametrize("part", ["NOT ", "- ", "+ ", "("])
def test_depth_is_limited(part: str) -> None:
    with pytest.raises(ClientError):
        compile_sql(part * (MAX_LENGTH // len(part)))


def test_chains() -> None:
    assert matches(f"{'NOT ' * (MAX_DEPTH - 2)}(a IS NULL)")
    with pytest.raises(ClientError, match=f"more than {MAX_DEPTH} conditions"):
        compile_sql(f"{'NOT ' * (MAX_DEPTH - 1)}(a IS NULL)")
    with pytest.raises(ClientError, match=f"more than {MAX_DEPTH} conditions"):
        compile_sql("a" + " = a" * MAX_DEPTH)
    # These do not nest.
    assert matches(" OR ".join(f"a = {n}" for n in range(1000)), a="999")
    assert matches(" AND ".join(["a = 1"] * 1000), a="1")
    assert matches("(" * 5000 + "a = 1" + ")" * 5000, a="1")
    members = ", ".join(f"'{n}'" for n in range(1500))
    assert matches(f"a IN ({members})", a="1499")


TOKENS = st.sampled_from(
    [
        "a",
        "b",
        "5",
        "5L",
        "0.5",
        "1e9",
        "'x'",
        "''",
        "'",
        "--",
        "/*",
        "*/",
        "\n",
        "=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "(",
        ")",
        ",",
        "+",
        "-",
        "AND",
        "OR",
        "NOT",
        "IS",
        "NULL",
        "IN",
        "BETWEEN",
        "TRUE",
        "FALSE",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
        "\x00",
        "�",
        "あ",
        "%",
        "99999999999",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.lists(TOKENS, max_size=40).map(" ".join), st.lists(TOKENS, max_size=20).map("".join), st.text()))
def test_any_text_is_an_expression_or_a_client_error(text: str) -> None:
    try:
        compiled = compile_sql(text)
    except ClientError:
        return
    assert compiled(b"a\x015\x02b\x01x\x02") in (True, False)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_properties_match_or_don_t(raw: bytes) -> None:
    for expression in ("a > 5", "a = 5.5", "a = 5000000000", "a >= b", "a = TRUE", "a CONTAINS 'x'", "a IN ('x')"):
        for properties in (raw, b"a\x01" + raw, b"a\x01" + raw + b"\x02b\x01" + raw):
            assert compile_sql(expression)(properties) in (True, False)


@pytest.mark.parametrize(
    "value", ["9" * 32000, "0" * 32000, "-" * 32000, " " * 32000 + "x", "1e" + "9" * 32000, "٥" * 10000]
)
def test_long_numbers_are_quick(value: str) -> None:
    raw = encode_properties({"a": value})
    matches = [compile_sql(expression) for expression in ("a > 5", "a > 5.5", "a > 5000000000", "a > a")]
    began = time.thread_time()
    for match in matches:
        match(raw)
    assert time.thread_time() - began < 0.2
