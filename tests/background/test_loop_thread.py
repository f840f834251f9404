"""Tests of an event loop in a thread. Work is submitted to it. If it dies, every waiting caller gets an error."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from concurrent.futures import CancelledError, Future

import pytest
from wait_until import wait_until

from gantrymq.background.loop_thread import LoopThread
from gantrymq.errors import ThreadDied

TIMEOUT_S = 20.0


def test_work_is_done_in_the_thread() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def fail() -> None:
        raise OSError("no disk")

    with LoopThread("worker") as thread:
        assert thread.is_alive
        assert not thread.is_current
        assert thread.submit(work()).result(TIMEOUT_S) == "worker"
        with pytest.raises(OSError, match="no disk"):
            thread.submit(fail()).result(TIMEOUT_S)
    assert not thread.is_alive


def test_the_end_cancels_what_is_under_way() -> None:
    began, ended = threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with LoopThread("worker") as thread:
        future = thread.submit(wait_for_ever())
        assert began.wait(TIMEOUT_S)
    assert ended.is_set()
    with pytest.raises(CancelledError):
        future.result(TIMEOUT_S)


def test_who_gives_up_cancels_the_work() -> None:
    began, ended = threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with LoopThread("worker") as thread:
        future = thread.submit(wait_for_ever())
        assert began.wait(TIMEOUT_S)
        assert future.cancel()
        assert ended.wait(TIMEOUT_S)


def test_death_is_told_to_all_who_wait_and_to_those_who_come_later(caplog: pytest.LogCaptureFixture) -> None:
    closed = threading.Event()

    async def close() -> None:
        await asyncio.sleep(0)
        closed.set()

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def exit_in_a_callback() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.Event().wait()

    thread = LoopThread("consumer", close)
    thread.start()
    waiting = [thread.submit(wait_for_ever()) for _ in range(3)]
    waiting.append(thread.submit(exit_in_a_callback()))
    for future in waiting:
        with pytest.raises(ThreadDied, match=r"the thread consumer died of SystemExit\(3\)") as told:
            future.result(TIMEOUT_S)
        assert isinstance(told.value.__cause__, SystemExit)
    assert closed.wait(TIMEOUT_S)
    with pytest.raises(ThreadDied):
        thread.submit(wait_for_ever())
    assert isinstance(thread.error, SystemExit)
    thread.stop()
    assert not thread.is_alive
    assert "the thread consumer died" in caplog.text


def test_what_fails_while_it_dies_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def close() -> None:
        raise OSError("no network")

    async def interrupt() -> None:
        raise KeyboardInterrupt

    thread = LoopThread("consumer", close)
    thread.start()
    with pytest.raises((ThreadDied, KeyboardInterrupt)):
        thread.submit(interrupt()).result(TIMEOUT_S)
    thread.stop()
    assert "the thread consumer left something behind" in caplog.text
    assert "no network" in caplog.text


def test_what_comes_while_it_stops_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """The task never starts. Unless it is cancelled, asyncio logs "Task was destroyed but it is pending!"."""

    async def work() -> None:
        await asyncio.Event().wait()

    async def running_loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def submit_and_stop() -> None:
        futures.append(threads[0].submit(work()))
        loop.stop()

    futures: list[Future[None]] = []
    threads = [LoopThread("gantrymq-test")]
    threads[0].start()
    loop = threads[0].submit(running_loop()).result(TIMEOUT_S)
    loop.call_soon_threadsafe(submit_and_stop)
    wait_until(lambda: futures)
    threads.pop().stop()
    assert futures.pop().cancelled()
    gc.collect()
    assert not caplog.records
