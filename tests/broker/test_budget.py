"""What waiting requests may hold."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from gantrymq.broker.budget import Budget
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.connection import Connection


async def test_one_connection_gets_a_quarter() -> None:
    budget = Budget("questions", 8, 800)
    connections = [Connection({}) for _ in range(6)]
    with ExitStack() as held:
        for connection in connections[:4]:
            for _ in range(2):
                held.enter_context(budget.held(connection, 10))
            with pytest.raises(RequestRefused) as refused:
                held.enter_context(budget.held(connection, 10))
            assert refused.value.code == ResponseCode.SYSTEM_BUSY
        with pytest.raises(RequestRefused, match="8 questions of 80 bytes"):
            held.enter_context(budget.held(connections[4], 10))
    with budget.held(connections[0], 200), pytest.raises(RequestRefused), budget.held(connections[0], 1):
        pass


async def test_bytes_of_all_are_bounded() -> None:
    budget = Budget("questions", 100, 400)
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(budget.held(Connection({}), 100))
        with pytest.raises(RequestRefused):
            held.enter_context(budget.held(Connection({}), 1))
    # A large one is served alone.
    with budget.held(Connection({}), 1000), pytest.raises(RequestRefused), budget.held(Connection({}), 1):
        pass
