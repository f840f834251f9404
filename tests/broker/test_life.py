"""Start and stop of a broker.

Its parts start in order. All of them stop even if one raises. Background tasks survive every error.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from broker_support import Peer, config
from ports import free_port
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.background.repeating import AFTER_ERROR_S, Pause, Repeating, Work
from gantrymq.broker import broker as broker_module
from gantrymq.broker.broker import Broker
from gantrymq.broker.feature import Feature, handler_table
from gantrymq.errors import ConfigError, GantryError, StoreError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.config import SYNC_FLUSH


class Answering(Feature):
    def handlers(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.PULL_MESSAGE: self.answer}

    def answer(self, connection: Connection, request: RemotingCommand) -> Reply:
        return RemotingCommand.response()


def test_a_code_that_two_parts_answer() -> None:
    with pytest.raises(ValueError, match=r"Answering: another feature handles .*11.* already"):
        handler_table([Answering(), Answering()])


class Raising(Feature):
    """A part that raises in the steps named in `where`."""

    def __init__(self, *where: str) -> None:
        self._where = where
        self.stopped = False

    def load(self) -> None:
        self._raise("load")

    async def start(self) -> None:
        self._raise("start")

    async def stop(self) -> None:
        self.stopped = True
        self._raise("stop")

    def _raise(self, where: str) -> None:
        if where in self._where:
            raise RuntimeError(f"it can't {where}")


def parts_of(broker: Broker) -> list[Feature]:
    return broker.features.all


@pytest.mark.parametrize("where", ["load", "start"])
@pytest.mark.parametrize("place", range(0, 40, 3))
async def test_a_start_that_fails_half_way_leaves_nothing_behind(tmp_path: Path, where: str, place: int) -> None:
    settings = config(tmp_path / "store")
    settings.listen_port = free_port()
    broker = Broker(settings)
    parts_of(broker).insert(place, Raising(where))
    with pytest.raises(RuntimeError, match=f"it can't {where}"):
        await broker.start()
    await broker.stop()
    assert not (tmp_path / "store" / "abort").exists()
    again = Broker(settings)
    await again.start()
    await again.stop()


async def test_a_broker_that_can_t_be_made_leaves_its_port(tmp_path: Path) -> None:
    settings = config(tmp_path / "store")
    settings.listen_port = port = free_port()
    settings.store.message_delay_level = "1s nonsense"
    with pytest.raises(ConfigError, match="messageDelayLevel") as error:
        Broker(settings)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
    assert error.value


async def test_a_metrics_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = Broker(config(tmp_path / "store", metrics_port=taken.getsockname()[1]))
        with pytest.raises(GantryError, match="metricsPort"):
            await broker.start()
    assert not (tmp_path / "store" / "abort").exists()


async def test_a_damaged_file_is_named_and_nothing_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "store" / "config" / "topics.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    with pytest.raises((StoreError, ConfigError), match=r"topics\.json"):
        await Broker(config(tmp_path / "store")).start()
    path.unlink()
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    await broker.stop()


async def test_a_part_that_raises_keeps_no_other_from_stopping(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = Broker(config(tmp_path / "store"))
    raising = [Raising("stop") for _ in range(5)]
    for place, part in zip((0, 6, 13, 20, 38), raising, strict=True):
        parts_of(broker).insert(place, part)
    await broker.start()
    peer = Peer(await remoting.connection(broker.address))
    await peer.send("orders", b"x")
    with pytest.raises(RuntimeError, match="it can't stop"):
        await broker.stop()
    assert all(part.stopped for part in raising)
    assert not (tmp_path / "store" / "abort").exists()
    await broker.stop()
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    assert (queue := broker.store.find_queue("orders", 0)) is not None
    assert queue.max_offset == 1
    await broker.stop()


async def test_sends_that_wait_for_the_disk_are_answered_when_it_stops(
    tmp_path: Path, remoting: RemotingClient
) -> None:
    settings = config(tmp_path / "store")
    settings.store.flush_disk_type = SYNC_FLUSH
    broker = Broker(settings)
    await broker.start()
    peer = Peer(await remoting.connection(broker.address))
    sends = [asyncio.create_task(peer.send("orders", b"x")) for _ in range(50)]
    await until(lambda: broker.store.max_physical_offset)
    await broker.stop()
    assert {response.code for response in await asyncio.gather(*sends)} == {ResponseCode.SUCCESS}


class FailingJobs(Jobs):
    """Background tasks that raise `error` while it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self.jobs: list[Repeating] = []

    def repeating(
        self, name: str, work: Work, interval_s: float = float("inf"), *, after_error_s: float = AFTER_ERROR_S
    ) -> Repeating:
        def failing() -> Pause:
            if self.error is not None:
                raise self.error
            return work()  # type: ignore[return-value]

        job = super().repeating(name, failing, interval_s, after_error_s=min(after_error_s, 0.01))
        self.jobs.append(job)
        return job


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("no number"), MemoryError()])
async def test_every_job_survives_an_error(
    tmp_path: Path,
    remoting: RemotingClient,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    monkeypatch.setattr(broker_module, "Jobs", FailingJobs)
    broker = Broker(config(tmp_path / "store", metrics_port=0))
    jobs = broker.jobs
    assert isinstance(jobs, FailingJobs)
    await broker.start()
    try:
        peer = Peer(await remoting.connection(broker.address))
        assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
        jobs.error = error
        for job in jobs.jobs:
            # Start tasks that had nothing to do yet, such as the one for writers with ids.
            job.start()
            job.wake()
        await until(lambda: all(job.report.failures >= 2 for job in jobs.jobs))
        assert (await peer.send("orders", b"y")).code == ResponseCode.SUCCESS
        jobs.error = None
        await until(lambda: not jobs.failing())
        assert [job.report.name for job in jobs.jobs if not job.report.runs] == []
    finally:
        jobs.error = None
        await broker.stop()


async def test_the_runtime_info_says_which_job_fails(tmp_path: Path, remoting: RemotingClient) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    job = broker.jobs.repeating("tidy up", fail)
    try:
        job.start(0.0)
        await until(lambda: job.report.failures)
        table = broker.runtime.table()
        assert table["job_tidy-up_failures"] == "1"
        assert table["job_tidy-up_lastError"] == "OSError: [Errno 28] No space left on device"
        assert int(table["job_tidy-up_failingSinceMs"]) > 1_700_000_000_000
    finally:
        job.cancel()
        await broker.stop()


async def test_one_long_poll_that_raises_drops_no_other(broker: Broker, peer: Peer) -> None:
    """If one pending pull raises, the others are still answered.

    A pull can raise because its group was deleted meanwhile, or because the disk cannot be read.
    """
    await peer.send("orders", b"x", queue_id=0)
    pulls = [asyncio.create_task(peer.pull("orders", offset=1, suspend_ms=60_000)) for _ in range(3)]
    await until(lambda: len(broker.polling) == 3)
    retry: Callable[..., None] = broker.polling.retry
    calls = 0

    def raising(*args: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError("gone")
        retry(*args)

    broker.polling.retry = raising
    await peer.send("orders", b"y", queue_id=0)
    codes = sorted(response.code for response in await asyncio.gather(*pulls))
    assert codes == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
