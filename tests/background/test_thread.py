"""Tests that a supervised thread reports its death."""

from __future__ import annotations

import threading

import pytest

from gantrymq.background.thread import SupervisedThread


def test_death_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []

    def work() -> None:
        raise OSError(24, "too many open files")

    thread = SupervisedThread("flusher", work, told.append)
    thread.start()
    assert thread.join(5)
    assert [str(error) for error in told] == ["[Errno 24] too many open files"]
    assert "the thread flusher died" in caplog.text


def test_death_is_told_before_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A log call can block. Until the owner is notified, it would rely on a dead thread."""
    logged: list[str] = []

    def work() -> None:
        raise OSError(24, "too many open files")

    def died(error: BaseException) -> None:
        logged.append(caplog.text)

    thread = SupervisedThread("flusher", work, died)
    thread.start()
    assert thread.join(5)
    assert logged == [""]
    assert "the thread flusher died" in caplog.text


def test_an_end_is_no_death() -> None:
    told: list[BaseException] = []
    end = threading.Event()

    def work() -> None:
        end.wait(5)

    thread = SupervisedThread("worker", work, told.append)
    assert thread.join(0)
    thread.start()
    assert thread.is_alive
    assert not thread.is_current
    assert not thread.join(0.01)
    end.set()
    assert thread.join(5)
    assert told == []
