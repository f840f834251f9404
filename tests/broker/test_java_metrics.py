"""Names, types, labels and buckets of the metrics are those of Apache's broker 5.5.0."""

from __future__ import annotations

from pathlib import Path

import httpx
from broker_support import config
from metrics_page import described, java_metrics
from metrics_traffic import fill_metrics
from ports import free_port
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.remoting.client import RemotingClient

#: Metrics that this broker does not have, and why.
MISSING = {
    "rocketmq_processor_watermark": "there are no thread pools",
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": "the buffer is a heap and is not scanned",
}


async def test_metrics_are_those_of_java(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = Broker(config(tmp_path / "store", metrics_port=free_port()))
    await broker.start()
    try:
        await fill_metrics(broker.port, remoting)
        java = java_metrics()
        expected = {name: one for name, one in java.items() if name not in MISSING}
        async with httpx.AsyncClient() as client:

            async def page() -> str | None:
                text = (await client.get(f"http://127.0.0.1:{broker.config.metrics_port}/metrics")).text
                found = described(text)
                return text if all(found[name].labels for name in expected) else None

            own = described(await until(page, timeout_s=60))
        for name, one in expected.items():
            assert own[name] == one, name
        assert not MISSING.keys() & own.keys()
        assert {name for name in own if name.startswith("rocketmq_")} <= java.keys()
    finally:
        await broker.stop()
