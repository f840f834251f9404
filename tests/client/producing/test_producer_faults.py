"""100,000 numbered messages while servers fail: all acknowledged messages are stored.

Each test reads both brokers afterwards. A message may be stored twice, because a send without a response is
repeated.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from numbered import TOPIC, Sends, restarted, send_numbered, stored, two_brokers

from gantrymq.client.producing.producer import Producer
from gantrymq.remoting.address import parse_address
from gantrymq.testing.processes import ProcessCluster

Fault = Callable[[ProcessCluster, Sends], Coroutine[Any, Any, None]]


async def broker_killed(cluster: ProcessCluster, sends: Sends) -> None:
    await sends.reach(10_000)
    os.kill(cluster.brokers[0].pid, signal.SIGKILL)
    await sends.reach(25_000)
    cluster.brokers[0] = await asyncio.to_thread(restarted, cluster, 0)


async def broker_made_slow(cluster: ProcessCluster, sends: Sends) -> None:
    """Stops the broker twice for a second. Requests wait, and some time out."""
    for after in (10_000, 30_000):
        await sends.reach(after)
        os.kill(cluster.brokers[0].pid, signal.SIGSTOP)
        await asyncio.sleep(1)
        os.kill(cluster.brokers[0].pid, signal.SIGCONT)


async def name_server_gone(cluster: ProcessCluster, sends: Sends) -> None:
    await sends.reach(10_000)
    assert cluster.name_server
    os.kill(cluster.name_server.pid, signal.SIGKILL)


async def both_brokers_restarted(cluster: ProcessCluster, sends: Sends) -> None:
    """Restarts both brokers in order, one after the other."""
    for number, after in enumerate((10_000, 30_000)):
        await sends.reach(after)
        cluster.brokers[number] = await asyncio.to_thread(restarted, cluster, number)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", [broker_killed, broker_made_slow, name_server_gone, both_brokers_restarted])
async def test_no_acknowledged_message_is_lost(tmp_path: Path, fault: Fault) -> None:
    count, least = 100_000, 10_000
    async with two_brokers(tmp_path) as cluster, asyncio.timeout(90):
        sends = Sends()
        # The fault table would exclude the broker for longer than the test takes.
        async with Producer(
            cluster.namesrv_addr, "numbers", try_timeout=0.5, send_latency_fault_enable=False
        ) as producer:
            failing = asyncio.create_task(fault(cluster, sends))
            await send_numbered(producer, range(count), sends)
            await failing
            # The sends can end before a broker is back. It must get some again.
            while min(Counter(sends.acknowledged.values()).values()) <= least:
                await send_numbered(producer, range(count, count + 5_000), sends)
                count += 5_000
        found = await stored(cluster.namesrv_addr, cluster.brokers)
    assert sends.acknowledged.keys() == set(range(count))
    assert not sends.acknowledged.keys() - found.keys()
    # A further attempt sent each of them to the other broker.
    assert not sends.failed


class Proxy:
    """A proxy between a producer and a broker. It reads everything, and forwards it unless it is `halted`."""

    def __init__(self, target: str) -> None:
        self.target = parse_address(target)
        self.halted = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self.server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self.target)
        for source, sink in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(self._copy(source, sink))
            self._tasks.add(task)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self.halted:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


@pytest.mark.timeout(120)
async def test_a_connection_that_swallows_everything(tmp_path: Path) -> None:
    """A half-open connection: the kernel accepts the bytes, and no response arrives."""
    count = 20_000
    async with two_brokers(tmp_path) as cluster, Proxy(cluster.brokers[0].address) as proxy, asyncio.timeout(90):
        sends = Sends()
        async with Producer(
            cluster.namesrv_addr, "numbers", try_timeout=0.3, send_latency_fault_enable=True
        ) as producer:
            (name,) = {queue.broker_name for queue in await producer.queues(TOPIC)} - {"broker-b"}
            producer.client.routes.all_brokers()[name][0] = proxy.address
            sending = asyncio.create_task(send_numbered(producer, range(count), sends))
            await sends.reach(count // 4)
            proxy.halted = True
            await sending
        found = await stored(cluster.namesrv_addr, cluster.brokers)
    assert sends.acknowledged.keys() == set(range(count))
    assert not sends.acknowledged.keys() - found.keys()
    assert not sends.failed
    late = [sends.acknowledged[number] for number in range(count // 2, count)]
    assert late.count("broker-b") == len(late)
