"""Message rates and sums from samples of totals, with a simulated clock."""

from __future__ import annotations

import pickle

import pytest

from gantrymq.broker.admin.traffic import DAY, HOUR, MINUTE, SAMPLE_S, Totals, Traffic


def sampled(totals: list[int], *, step: float = SAMPLE_S) -> tuple[Traffic, float]:
    """Returns the traffic of key "t", and the time of the last sample.

    It has one sample every `step` seconds.
    """
    traffic = Traffic(0.0, [("t", totals[0])])
    for i, total in enumerate(totals[1:], 1):
        traffic.sample([("t", total)], i * step)
    return traffic, (len(totals) - 1) * step


def test_steady_rate() -> None:
    traffic, now = sampled(list(range(0, 1_000_000, 100)))
    assert [traffic.tps(seconds, now) for seconds in (10, 60, 600)] == [10, 10, 10]
    for span in (MINUTE, HOUR, DAY):
        recent = traffic.recent("t", span, now)
        assert recent.tps == pytest.approx(10, rel=0.01)
        assert span * 10 <= recent.sum <= span * 10 * 1.2
    assert traffic.total == 999_900


def test_burst_leaves_each_span_in_turn() -> None:
    traffic = Traffic(0.0)
    now, gone_at = 0.0, {}
    while len(gone_at) < 3:
        now += SAMPLE_S
        traffic.sample([("t", 100)], now)
        for span in (MINUTE, HOUR, DAY):
            recent = traffic.recent("t", span, now)
            assert recent.sum in (0, 100)
            if not recent.sum:
                gone_at.setdefault(span, now)
    for span, at in gone_at.items():
        assert span <= at <= span * 1.2 + SAMPLE_S


def test_totals_from_before_count_for_nothing() -> None:
    traffic, now = sampled([1000, 1000, 1005])
    assert traffic.total == 5
    assert traffic.recent("t", MINUTE, now).sum == 5


def test_total_that_falls_counts_for_nothing_and_begins_anew() -> None:
    traffic, now = sampled([1000, 20, 30])
    assert traffic.recent("t", MINUTE, now).sum == 10


def test_key_seen_for_the_first_time() -> None:
    traffic = Traffic(0.0)
    assert "t" not in traffic
    traffic.sample([("t", 5)], 10.0)
    traffic.sample([("t", 7)], 20.0)
    assert "t" in traffic
    assert traffic.total == 7
    assert traffic.recent("none", MINUTE, 20.0) == (0, 0.0)


def test_samples_at_any_moment_do_not_grow_the_table() -> None:
    traffic = Traffic(0.0, [("t", 0)])
    for i in range(1, 100_000):
        traffic.sample([("t", i)], i * 1.0)
    assert traffic.tps(600, 100_000.0) == pytest.approx(1, rel=0.01)
    # 602 samples and 26 buckets in each span: about 11 kB.
    assert len(pickle.dumps(traffic)) < 20_000


def test_totals_at_midnight() -> None:
    totals = Totals(day=1)
    totals.update(1, 50)
    assert (totals.yesterday_morning, totals.today_morning) == (0, 0)
    totals.update(2, 80)
    totals.update(2, 90)
    assert (totals.yesterday_morning, totals.today_morning) == (0, 80)
    totals.update(3, 100)
    assert (totals.yesterday_morning, totals.today_morning) == (80, 100)
