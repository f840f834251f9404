"""Sockets that wait to be accepted by the console: the addresses alternate."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from gantrymq.console.connections import MAX_PER_ADDRESS
from gantrymq.console.http import AcceptQueue


def test_addresses_take_turns() -> None:
    queue = AcceptQueue()
    with ExitStack() as stack:
        for source in ("a", "a", "a", "b", "c", "c"):
            queue.add(source, stack.enter_context(socket.socket()))
        assert len(queue) == 6
        assert [queue.take()[0] for _ in range(6)] == ["a", "b", "c", "a", "c", "a"]
    assert not queue
    with pytest.raises(IndexError):
        queue.take()


def test_too_many_of_one_address() -> None:
    """The oldest are closed."""
    queue = AcceptQueue()
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(MAX_PER_ADDRESS + 2)]
        queue.add("b", other := stack.enter_context(socket.socket()))
        for sock in sockets:
            queue.add("a", sock)
        assert [sock.fileno() for sock in sockets[:2]] == [-1, -1]
        assert sockets[2].fileno() != -1
        assert len(queue) == MAX_PER_ADDRESS + 1
        assert queue.take() == ("b", other)
        assert queue.take() == ("a", sockets[2])
