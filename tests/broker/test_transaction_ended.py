"""Ended half messages, singly and in runs, compared with a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.broker.transaction.ended_half_messages import EndedHalfMessages

offsets = st.integers(0, 60)
steps = st.lists(
    st.tuples(st.sampled_from(["add", "add_run", "pop", "pop_run", "pop_between"]), offsets, offsets, st.integers(0, 9))
)


@given(steps)
def test_it_is_a_dictionary(given_steps: list[tuple[str, int, int, int]]) -> None:
    ended, known = EndedHalfMessages(), dict[int, int]()
    for what, start, end, op_offset in given_steps:
        span = range(start, max(start + 1, end))
        if what == "add":
            assert ended.add(start, op_offset) == (start not in known)
            known.setdefault(start, op_offset)
        elif what == "add_run":
            is_new = known.keys().isdisjoint(span)
            assert ended.add_run(start, span.stop, op_offset) == is_new
            if is_new:
                known.update(dict.fromkeys(span, op_offset))
        elif what == "pop":
            assert ended.pop(start) == known.pop(start, None)
        elif what == "pop_run":
            run = ended.pop_run(start)
            if run is not None:
                assert {known.pop(offset) for offset in range(start, run[0])} == {run[1]}
        else:
            popped = dict(ended.pop_between(start, end))
            assert popped == {offset: known.pop(offset) for offset in range(start, end) if offset in known}
        assert len(ended) == len(known)
        assert [offset for offset in range(130) if offset in ended] == sorted(known)


def test_a_run_takes_no_more_than_one() -> None:
    ended = EndedHalfMessages()
    for start in range(0, 10_000_000, 500):
        assert ended.add_run(start, start + 500, start)
    assert len(ended) == 10_000_000
    assert ended.pop_run(0) == (500, 0)
    assert 499 not in ended
    assert 9_999_999 in ended
