"""Tests of the address patterns in plain_acl.yml."""

from __future__ import annotations

import pytest

from gantrymq.auth.address_pattern import parse_pattern


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["1.2.3.4", "::1"], []),
        ("*.*.*.*", ["1.2.3.4"], []),
        ("", [], ["1.2.3.4", ""]),
        ("192.168.1.5", ["192.168.1.5"], ["192.168.1.50", "192.168.1.4", "?"]),
        ("192.168.1.5,192.168.1.7", ["192.168.1.5", "192.168.1.7"], ["192.168.1.6"]),
        ("192.168.1.{5,7}", ["192.168.1.5", "192.168.1.7"], ["192.168.1.57", "192.168.2.5"]),
        ("10.10.103.*", ["10.10.103.0", "10.10.103.255"], ["10.10.104.1", "10.10.10.3"]),
        ("10.10.5-7.*", ["10.10.5.1", "10.10.7.9"], ["10.10.8.1", "10.10.4.1", "10.10.50.1"]),
        ("10.0.*.5", ["10.0.9.5"], ["10.0.9.6"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1", "::1%lo"], ["::2"]),
        ("2001:db8::{1,2}", ["2001:db8::1", "2001:0DB8::2"], ["2001:db8::3"]),
        ("1050:0:0:0:5:600:300c:*", ["1050::5:600:300c:1"], ["1050::5:600:300d:1"]),
        ("1050::5:600:300-30c:*", ["1050::5:600:30a:1"], ["1050::5:600:30d:1", "1.2.3.4"]),
        ("192.168.1.5", ["::ffff:192.168.1.5"], []),
    ],
)
def test_who_is_meant(pattern: str, inside: list[str], outside: list[str]) -> None:
    matches = parse_pattern(pattern)
    assert [host for host in inside if not matches(host)] == []
    assert [host for host in outside if matches(host)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "10.10.10",
        "10.10.*",
        "10.10.10.256-300",
        "10.10.9-5.*",
        "10.10.-5.*",
        "a.b.c.*",
        "nobody",
        "1.2.3.4,x",
        "1.2.3.4{1}",
        "::32{a,b}",
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_pattern(pattern)
