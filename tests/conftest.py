"""Every async test runs on uvloop, as the servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop
from hypothesis import HealthCheck, settings

# A busy machine is no failure; pytest-timeout ends what hangs.
settings.register_profile("gantrymq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gantrymq")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    # A factory and not a policy: policies are deprecated from Python 3.14 on.
    return {"uvloop": uvloop.new_event_loop}
