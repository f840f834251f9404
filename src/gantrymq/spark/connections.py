"""Connections that the tasks of a Python worker share, one after the other: Spark keeps its workers from task to task.

A task that makes its own connects to a NameServer and its brokers, two or three connections that live for milliseconds:
some 700 after 300 micro-batches, and a handshake each with TLS. Here a worker has one loop in a thread, and one
RemotingClient for each set of keys and certificates, with a connection for each server. Routes aren't kept: a task asks
for those that it needs.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from gantrymq.background.loop_thread import CANCEL_TIMEOUT_S, LoopThread
from gantrymq.background.repeating import Repeating
from gantrymq.remoting.client import RemotingClient
from gantrymq.spark.cluster import Cluster
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.security import Security

#: Connections that no task has used for so long are closed.
IDLE_S = 60.0
#: After so long they are made anew when no task has them: files of certificates may be others by now.
MAX_AGE_S = 600.0
#: So many sets of keys and certificates are kept at most, but for those that tasks have.
MOST_KEPT = 8

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    remoting: RemotingClient
    made_at: float
    used_at: float
    users: int = 0


class KeptClients:
    """The RemotingClients of a worker; lives in one event loop. `now` are seconds that only go up."""

    def __init__(self) -> None:
        self._kept: dict[bytes, _Kept] = {}
        self._closing = Repeating("close idle connections", self._close_idle, IDLE_S / 4)

    def take(self, security: Security, now: float) -> RemotingClient:
        """To be given back. Raises ConfigError for certificates that can't be read."""
        key = pickle.dumps(security)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(security.remoting_client(), now, now)
        kept.users += 1
        return kept.remoting

    async def give_back(self, remoting: RemotingClient, now: float) -> None:
        """Keeps it for the next task, or closes what has been kept too long."""
        for kept in self._kept.values():
            if kept.remoting is remoting:
                kept.users -= 1
                kept.used_at = now
        await self._close(self._too_long(now))
        self._closing.start()

    async def close(self) -> None:
        """Closes all that no task has."""
        self._closing.cancel()
        await self._close([key for key, kept in self._kept.items() if not kept.users])

    def _too_long(self, now: float) -> list[bytes]:
        free = sorted(
            (key for key, kept in self._kept.items() if not kept.users), key=lambda key: self._kept[key].used_at
        )
        over = free[: max(0, len(self._kept) - MOST_KEPT)]
        return over + [
            key
            for key in free[len(over) :]
            if now - self._kept[key].used_at >= IDLE_S or now - self._kept[key].made_at >= MAX_AGE_S
        ]

    async def _close_idle(self) -> None:
        await self._close(self._too_long(time.monotonic()))

    async def _close(self, keys: list[bytes]) -> None:
        # Out of the table first: a task that begins meanwhile takes none that is being closed.
        for kept in [self._kept.pop(key) for key in keys]:
            await kept.remoting.close()


class Connected:
    """What a task has of its worker's connections; what it submits ends with it."""

    def __init__(self, loop: LoopThread, cluster: Cluster) -> None:
        self.cluster = cluster
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts `work` in the worker's loop."""
        return self._loop.submit(self._run(work))

    def cancel(self) -> bool:
        """Ends what is still under way, and waits for that. False: something hasn't ended in time."""
        return self._loop.submit(self._cancel()).result()

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    async def _cancel(self) -> bool:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CANCEL_TIMEOUT_S)
        return not self._tasks


class _Worker:
    """The loop of this process and what is kept in it."""

    def __init__(self) -> None:
        self.loop = LoopThread("connections")
        self.loop.start()
        self.clients = KeptClients()

    def close(self) -> None:
        if self.loop.is_alive:
            self.loop.submit(self.clients.close()).result()
        self.loop.stop()


_lock = threading.Lock()
_worker: _Worker | None = None


def _this_worker() -> _Worker:
    global _worker
    with _lock:
        if _worker is None or not _worker.loop.is_alive:
            _worker = _Worker()
        return _worker


def _forget() -> None:
    """In a child of fork, which has no thread but its own."""
    global _worker, _lock
    _worker, _lock = None, threading.Lock()


def close_kept() -> None:
    """Closes what this process keeps; the next task makes it anew."""
    global _worker
    with _lock:
        worker, _worker = _worker, None
    if worker is not None:
        worker.close()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_kept)


@contextmanager
def connected(options: ReadOptions | WriteOptions) -> Iterator[Connected]:
    """The brokers of a task's options. Raises ConfigError for certificates that can't be read."""
    worker = _this_worker()
    loop, clients = worker.loop, worker.clients

    async def take() -> RemotingClient:
        return clients.take(options.security, time.monotonic())

    async def make(remoting: RemotingClient) -> Cluster:
        from_slaves = isinstance(options, ReadOptions) and options.from_slaves
        return Cluster(options.name_servers, options.retry_timeout_ms, remoting=remoting, from_slaves=from_slaves)

    remoting = loop.submit(take()).result()
    try:
        task = Connected(loop, loop.submit(make(remoting)).result())
        try:
            yield task
        finally:
            task.cancel()
    finally:
        loop.submit(clients.give_back(remoting, time.monotonic())).result()
