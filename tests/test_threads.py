"""`threads.Worker`: a thread that repeats a step."""

from __future__ import annotations

from gantrymq.system import threads

LONG_S = 60.0


def test_wakes_end_the_pause_and_are_not_lost() -> None:
    """A wake before or during a step starts one further step, however often it is called."""
    steps: threads.SimpleQueue[int] = threads.SimpleQueue()
    go_on: threads.SimpleQueue[float | None] = threads.SimpleQueue()
    count = 0

    def step() -> float | None:
        nonlocal count
        count += 1
        steps.put(count)
        return go_on.get(timeout=LONG_S)

    worker = threads.Worker("test", step, LONG_S, lambda error: None)
    worker.wake()
    worker.start()
    assert steps.get(timeout=LONG_S) == 1
    for _ in range(3):
        worker.wake()
    go_on.put(LONG_S)
    assert steps.get(timeout=LONG_S) == 2
    # No wake is left, so the next step follows its pause.
    go_on.put(0.01)
    assert steps.get(timeout=LONG_S) == 3
    assert worker.is_alive
    go_on.put(None)
    worker.join()
    assert count == 3
    assert not worker.is_alive


def test_an_error_ends_the_thread() -> None:
    problems: list[BaseException] = []

    def step() -> float | None:
        raise ValueError("it can't")

    worker = threads.Worker("test", step, 0.0, problems.append)
    worker.start()
    worker.join()
    assert [str(problem) for problem in problems] == ["it can't"]


def test_joining_a_thread_that_never_started() -> None:
    threads.Worker("test", lambda: None, 0.0, lambda error: None).join()
