"""The list of Java's metrics, with which tests/broker/test_java_metrics.py compares those of this project's broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from metrics_page import Described, described, java_metrics
from metrics_traffic import fill_metrics
from servers import free_port, gantry_namesrv, java_broker
from wait_until import until

from gantrymq.remoting.client import RemotingClient

pytestmark = pytest.mark.interop(feature="metrics", servers="java")


@pytest.mark.timeout(240)
async def test_the_list_is_that_of_apaches_broker(tmp_path: Path) -> None:
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    port = free_port()
    keys: dict[str, Any] = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": port,
        "metricsPromExporterHost": "127.0.0.1",
        "messageDelayLevel": "1s 5s",
    }
    remoting = RemotingClient({})
    try:
        broker = java_broker(tmp_path / "broker", namesrv.address, **keys)
        try:
            await fill_metrics(broker.port, remoting)
            seen: dict[str, Described] = {}

            async def is_complete() -> bool:
                seen.update(described((await client.get(f"http://127.0.0.1:{port}/metrics")).text))
                return seen.keys() >= java_metrics().keys()

            async with httpx.AsyncClient() as client:
                await until(is_complete, timeout_s=60)
            assert seen == java_metrics()
        finally:
            broker.kill()
    finally:
        await remoting.close()
        namesrv.kill()
