"""The signed requests that a server accepts.

The tests cover the order of their numbers, their timestamps, and older signature formats.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.protocol.acl_signature import ACCESS_KEY, SIGNATURE, SIGNED_AT, SIGNED_OPAQUE, Signer
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.signatures import MAX_CLOCK_DIFFERENCE_MS, WINDOW, SignedOpaques, signature_problem
from gantrymq.system.clock import now_ms

SIGNER = Signer("secret12")
LAST = (1 << 31) - 1


def request(opaque: int = 1, at_ms: int | None = None) -> RemotingCommand:
    """Returns a request signed as by the GantryMQ client."""
    made = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields={ACCESS_KEY: "alice", "topic": "T"}, body=b"x")
    made.opaque = opaque
    SIGNER.sign_request(made, now_ms() if at_ms is None else at_ms)
    return made


def problem(made: RemotingCommand, opaques: SignedOpaques | None = None, *, needs_bound: bool = False) -> str | None:
    return signature_problem(SIGNER, made, opaques or SignedOpaques(), needs_bound=needs_bound)


@given(st.integers(0, LAST), st.lists(st.integers(0, 2 * WINDOW), max_size=200))
def test_each_number_is_accepted_once(start: int, steps: list[int]) -> None:
    """Each number is accepted once, including numbers that arrive out of order or wrap around."""
    opaques, seen, highest = SignedOpaques(), set(), -1
    for step in steps:
        is_fresh = step not in seen and (highest < 0 or step > highest - WINDOW)
        assert opaques.add((start + step) & LAST) is is_fresh
        if is_fresh:
            seen.add(step)
            highest = max(highest, step)


def test_numbers_in_order_are_all_accepted() -> None:
    opaques = SignedOpaques()
    assert all(opaques.add(number & LAST) for number in range(LAST - 3000, LAST + 3000))
    assert not opaques.add(LAST)


def test_a_request_is_accepted_once_for_each_connection() -> None:
    opaques, made = SignedOpaques(), request(7)
    assert problem(made, opaques) is None
    assert problem(made, opaques) == ": the request has come before on this connection"
    assert problem(request(8), opaques) is None


@pytest.mark.parametrize("late_s", [-290, 290])
def test_clocks_may_differ_by_five_minutes(late_s: int) -> None:
    assert problem(request(at_ms=now_ms() - late_s * 1000)) is None
    limit_ms = MAX_CLOCK_DIFFERENCE_MS + 10_000
    found = problem(request(at_ms=now_ms() - limit_ms if late_s > 0 else now_ms() + limit_ms))
    assert found is not None
    assert "at most 300 s are accepted" in found


def test_a_number_is_spent_by_a_right_signature_alone() -> None:
    opaques, made = SignedOpaques(), request(7)
    forged = RemotingCommand.request(made.code, fields=dict(made.ext_fields), body=b"y")
    assert problem(forged, opaques) == ""
    assert problem(made, opaques) is None


def test_signatures_of_older_clients() -> None:
    made = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields={ACCESS_KEY: "alice", "topic": "T"}, body=b"x")
    made.ext_fields[SIGNATURE] = SIGNER.sign(made.ext_fields, made.body, made.version)
    assert problem(made) is None
    assert "boundSignatureRequired" in (problem(made, needs_bound=True) or "")
    made.ext_fields["topic"] = "U"
    assert problem(made) == ""


@pytest.mark.parametrize("changes", [{SIGNED_AT: "soon"}, {SIGNED_OPAQUE: "-1"}, {SIGNED_OPAQUE: str(1 << 40)}])
def test_odd_numbers_that_are_signed(changes: dict[str, str]) -> None:
    class Odd(Signer):
        def is_request_signed(self, request: RemotingCommand) -> bool:
            return True

    made = request()
    made.ext_fields.update(changes)
    assert signature_problem(Odd("secret12"), made, SignedOpaques(), needs_bound=True) is not None
