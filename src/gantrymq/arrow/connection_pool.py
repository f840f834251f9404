"""`ClientPool` shares connections between the tasks of a process.

A task is a call of `read_topic` or `write_topic`, or a task of Spark, which reuses its Python workers. Without a pool,
each task would open two or three connections for some milliseconds: about 700 in 300 micro-batches, each with a TLS
handshake. A process has one event loop in a thread. It has one RemotingClient for each set of keys and certificates. A
RemotingClient has one connection to each server. Routes are not shared: each task requests its own.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.arrow.options import ReadOptions, WriteOptions
from gantrymq.arrow.security import Security
from gantrymq.background.loop_thread import CANCEL_TIMEOUT_S, LoopThread
from gantrymq.background.repeating import Repeating
from gantrymq.errors import ThreadDied
from gantrymq.remoting.client import RemotingClient

#: Connections are closed if no task has used them for this time, in seconds.
IDLE_S = 60.0
#: Unused connections of this age (s) are closed, because the files of certificates may have changed.
MAX_AGE_S = 600.0
#: If the pool has more clients than this, it closes unused clients.
MAX_CLIENTS = 8

T = TypeVar("T")


@dataclass(slots=True)
class _PooledClient:
    remoting: RemotingClient
    made_at: float
    used_at: float
    users: int = 0


class ClientPool:
    """The RemotingClients of a worker, on one event loop. `now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._clients: dict[bytes, _PooledClient] = {}
        self._closing = Repeating("close idle connections", self._close_idle, IDLE_S / 4)

    def acquire(self, security: Security, now: float) -> RemotingClient:
        """Returns a client with these keys. The caller must `release` it.

        Raises ConfigError for certificates that can't be read.
        """
        key = pickle.dumps(security)
        pooled = self._clients.get(key)
        if pooled is None:
            pooled = self._clients[key] = _PooledClient(security.remoting_client(), now, now)
        pooled.users += 1
        return pooled.remoting

    async def release(self, remoting: RemotingClient, now: float) -> None:
        """Returns a client to the pool, and closes expired clients."""
        for pooled in self._clients.values():
            if pooled.remoting is remoting:
                pooled.users -= 1
                pooled.used_at = now
        await self._close(self._expired(now))
        self._closing.start()

    async def close(self) -> None:
        """Closes all clients that no task uses."""
        self._closing.cancel()
        await self._close([key for key, pooled in self._clients.items() if not pooled.users])

    def _expired(self, now: float) -> list[bytes]:
        free = sorted(
            (key for key, pooled in self._clients.items() if not pooled.users),
            key=lambda key: self._clients[key].used_at,
        )
        over = free[: max(0, len(self._clients) - MAX_CLIENTS)]
        return over + [
            key
            for key in free[len(over) :]
            if now - self._clients[key].used_at >= IDLE_S or now - self._clients[key].made_at >= MAX_AGE_S
        ]

    async def _close_idle(self) -> None:
        await self._close(self._expired(time.monotonic()))

    async def _close(self, keys: list[bytes]) -> None:
        # The client is removed first, so that a task that begins in the meantime doesn't get a closing client.
        for pooled in [self._clients.pop(key) for key in keys]:
            await pooled.remoting.close()


class TaskConnections:
    """The connections of one task. The work that the task submits is cancelled when the task ends."""

    def __init__(self, loop: LoopThread, cluster: ClusterClient) -> None:
        self.cluster = cluster
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts `work` in the event loop of the process."""
        return self._loop.submit(self._run(work))

    def cancel(self) -> bool:
        """Cancels the pending work and waits for its end. Returns False if it has not ended after CANCEL_TIMEOUT_S.

        Also returns False if waiting is impossible, because the event loop has stopped or runs in this thread.
        """
        try:
            ended = self._loop.submit(self._cancel())
        except ThreadDied:
            # A read was abandoned, and the process has ended: `close_pool` has already closed the connections.
            return False
        # Garbage collection can end an abandoned read in the thread of the event loop.
        return not self._loop.is_current and ended.result()

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
    """The event loop of this process, and the clients on it."""

    def __init__(self) -> None:
        self.loop = LoopThread("connections")
        self.loop.start()
        self.clients = ClientPool()

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
    """Resets the pool in the child of a fork, where the parent's event-loop thread doesn't exist."""
    global _worker, _lock
    _worker, _lock = None, threading.Lock()


def close_pool() -> None:
    """Closes the connections of this process. The next task opens new connections."""
    global _worker
    with _lock:
        worker, _worker = _worker, None
    if worker is not None:
        worker.close()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_pool)


@contextmanager
def task_connections(options: ReadOptions | WriteOptions) -> Iterator[TaskConnections]:
    """Yields a client for the cluster of the options. Raises ConfigError for certificates that can't be read."""
    worker = _this_worker()
    loop, clients = worker.loop, worker.clients

    async def take() -> RemotingClient:
        return clients.acquire(options.security, time.monotonic())

    async def make(remoting: RemotingClient) -> ClusterClient:
        from_slaves = isinstance(options, ReadOptions) and options.from_slaves
        return ClusterClient(options.name_servers, options.retry_timeout_ms, remoting=remoting, from_slaves=from_slaves)

    remoting = loop.submit(take()).result()
    try:
        task = TaskConnections(loop, loop.submit(make(remoting)).result())
        try:
            yield task
        finally:
            task.cancel()
    finally:
        with suppress(ThreadDied):
            released = loop.submit(clients.release(remoting, time.monotonic()))
            if not loop.is_current:
                released.result()
