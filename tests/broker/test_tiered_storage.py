"""A broker with tiered storage: uploads, deletion of log files, reads through to the tier, and failures of the tier."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from broker_support import config, job, run_again
from replicated_brokers import Replicas, copy_tables
from tier_support import CLEAN, FILE_BYTES, UPLOAD, deleted, fill, min_offset, peer_of, read_all, started, uploaded
from wait_until import until

from gantrymq.arrow.offsets import FirstMessage
from gantrymq.broker.broker import Broker
from gantrymq.broker.metrics.tier_metrics import tier_metrics
from gantrymq.errors import StoreError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.offset import QueueRequestHeader, SearchOffsetRequestHeader
from gantrymq.protocol.headers.pull import PullMessageResponseHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.system.clock import now_ms
from gantrymq.tier.catalog_loader import segment_names
from gantrymq.tier.objects import open_objects
from gantrymq.tier.segment import INDEX, LOG, MANIFESTS, QUEUES, object_name


async def test_messages_in_the_tier_are_read(tmp_path: Path, remoting: RemotingClient) -> None:
    tier = tmp_path / "tier"
    async with started(tmp_path / "store", tier) as broker:
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 100, KEYS="k", TAGS="a")
        await fill(peer, 10, "other")
        await uploaded(broker)
        assert await read_all(peer, 0) == sent
        await deleted(broker, peer)
        queue = broker.store.queue("orders", 0)
        assert queue.min_offset == 100
        assert await min_offset(peer) == 0
        assert await read_all(peer, 0) == sent
        assert await read_all(peer, 57) == sent[57:]
        tier_of_broker = broker.context.tier
        assert tier_of_broker is not None
        metrics = {
            metric.name: next(iter(metric.samples))[1] for metric in tier_metrics(tier_of_broker, broker.store, {})
        }
        assert metrics["gantry_tier_segments"] == metrics["gantry_tier_bytes"] / FILE_BYTES >= 6
        assert 0 < metrics["gantry_tier_behind_bytes"] < FILE_BYTES
        assert metrics["gantry_tier_messages_out_total"] == 100 + 43
        assert metrics["gantry_tier_lost_segments_total"] == metrics["gantry_tier_failed_reads_total"] == 0
        # Filters, also SQL92.
        assert await read_all(peer, 0, subscription="a") == sent
        assert await read_all(peer, 0, subscription="b") == []
        sql = {"expression_type": "SQL92"}
        assert await read_all(peer, 0, subscription="TAGS = 'a'", **sql) == sent
        assert await read_all(peer, 0, subscription="TAGS = 'b'", **sql) == []
        # A queue that has messages in the tier only is not deleted.
        assert (await peer.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == ResponseCode.SUCCESS
        assert (await peer.send("orders", b"next")).ext_fields["queueOffset"] == "100"
        sent.append(b"next")
        assert await read_all(peer, 95) == sent[95:]
    names = open_objects(str(tier), "c", "broker-a")
    bases = set(names.names(LOG))
    assert bases == set(names.names(QUEUES)) == set(names.names(INDEX))
    assert set(segment_names(names)) == bases
    assert all(size for size in names.names(INDEX).values())
    # After a restart, and in another place of the store.
    async with started(tmp_path / "store", f"file://{tier}") as broker:
        peer = await peer_of(broker, remoting)
        await uploaded(broker)
        assert await min_offset(peer) == 0
        assert await read_all(peer, 0) == sent


async def test_search_by_time(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await fill(peer, 100)
        times = [broker.store.store_time(broker.store.queue("orders", 0), offset) for offset in range(100)]

        async def search(timestamp: int, boundary: str) -> int:
            header = SearchOffsetRequestHeader(topic="orders", queue_id=0, timestamp=timestamp, boundary_type=boundary)
            response = await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            assert response.code == ResponseCode.SUCCESS, response.remark
            return int(response.ext_fields["offset"])

        asked = [
            (timestamp, boundary)
            for timestamp in sorted({times[0] - 1, times[0], *times[::7], times[-1], times[-1] + 1})
            for boundary in ("LOWER", "UPPER")
        ]
        expected = [await search(*question) for question in asked]
        await uploaded(broker)
        await deleted(broker, peer)
        assert broker.store.queue("orders", 0).min_offset >= 90
        assert [await search(*question) for question in asked] == expected


async def test_the_oldest_message_stays_the_same(tmp_path: Path, remoting: RemotingClient) -> None:
    """Spark streams recognise a queue by its oldest message."""
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)

        async def first_message() -> FirstMessage:
            header = QueueRequestHeader(topic="orders", queue_id=0)
            response = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, header)
            assert response.code == ResponseCode.SUCCESS, response.remark
            return FirstMessage(await min_offset(peer), int(response.ext_fields["timestamp"]))

        await fill(peer, 1)
        # The broker sets the store times. They must differ.
        await until(lambda: now_ms() > broker.store.store_time(broker.store.queue("orders", 0), 0) + 1)
        await fill(peer, 49)
        queue = broker.store.queue("orders", 0)
        times = [broker.store.store_time(queue, offset) for offset in range(2)]
        assert await first_message() == (0, times[0])
        await uploaded(broker)
        place = queue.unit(0)
        await deleted(broker, peer)
        assert await first_message() == (0, times[0])
        # If it is damaged, the next one.
        assert place is not None
        log = next((tmp_path / "tier/c/broker-a" / LOG).glob(f"{0:020d}*"))
        data = bytearray(log.read_bytes())
        data[place[0] + 200] ^= 1
        log.write_bytes(data)
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await uploaded(broker)
        assert await first_message() == (0, times[1])


async def test_deletion_waits_for_the_upload(
    tmp_path: Path, remoting: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A tier that fails stops neither sends nor reads of the log. On a full disk, files are deleted without a copy."""
    blocked = tmp_path / "tier"
    blocked.touch()
    async with started(tmp_path / "store", blocked) as broker:
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 50)
        await until(lambda: broker.store.flushed_offset >= broker.store.max_physical_offset)
        broker.jobs.find(UPLOAD).wake()
        await until(lambda: job(broker, UPLOAD).failing_since is not None)
        for _ in range(3):
            assert (await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
            broker.jobs.find(CLEAN).wake()
        # The segments are unknown, but a queue that begins at 0 does not need them.
        assert await min_offset(peer) == 0
        assert await read_all(peer, 0) == sent
        assert broker.store.min_physical_offset == 0
        tier = broker.context.tier
        assert tier is not None
        assert tier.lost_segments == 0
        broker.config.store.disk_space_warning_level_ratio = 0

        def is_deleted() -> bool:
            broker.jobs.find(CLEAN).wake()
            return broker.store.min_physical_offset > FILE_BYTES

        await until(is_deleted)
        assert tier.lost_segments >= 2
        assert "is deleted, although it is not in" in caplog.text
        # The segments are not known, so a consumer of lost messages must not skip those that may be in the tier.
        assert (await peer.pull("orders", 0)).code == ResponseCode.SYSTEM_BUSY
        assert (await peer.ask(RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic="orders", queue_id=0))).code == (
            ResponseCode.SYSTEM_BUSY
        )
        broker.config.store.disk_space_warning_level_ratio = 101
        blocked.unlink()
        await uploaded(broker)
        begin = await min_offset(peer)
        assert 0 < begin < 50
        assert await read_all(peer, begin) == sent[begin:]


async def test_a_tier_that_hangs(tmp_path: Path, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of the tier wait. Everything else goes on."""
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 50)
        await uploaded(broker)
        await deleted(broker, peer)
        tier = broker.context.tier
        assert tier is not None
        may_go_on = threading.Event()
        read = type(tier.objects).read

        def slow_read(objects: Any, *arguments: Any) -> bytes:
            may_go_on.wait()
            return read(objects, *arguments)

        monkeypatch.setattr(type(tier.objects), "read", slow_read)
        try:
            pulls = [asyncio.create_task(peer.pull("orders", 0)) for _ in range(70)]
            # More than 64 reads are refused at once.
            await until(lambda: sum(pull.done() for pull in pulls) == 6)
            assert {pull.result().code for pull in pulls if pull.done()} == {ResponseCode.SYSTEM_BUSY}
            new = await fill(peer, 3)
            assert await read_all(peer, 50) == new
        finally:
            may_go_on.set()
        assert {(await pull).code for pull in pulls} == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        assert await read_all(peer, 0) == sent + new


async def test_a_topic_that_was_created_again_begins_in_the_tier(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await fill(peer, 50)
        response = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "orders"})
        assert response.code == ResponseCode.SUCCESS, response.remark
        sent = await fill(peer, 60)
        await uploaded(broker)
        await deleted(broker, peer)
        assert broker.store.queue("orders", 0).min_offset > 40
        # The offset belongs to the old topic.
        response = await peer.pull("orders", 100)
        assert response.code == ResponseCode.PULL_OFFSET_MOVED
        header = response.read_header(PullMessageResponseHeader)
        assert (header.next_begin_offset, header.min_offset) == (0, 0)
        assert await read_all(peer, 0) == sent
        # Without the segments, the consumer must not skip messages.
        assert broker.context.tier is not None
        broker.context.tier.use(None)
        assert (await peer.pull("orders", 100)).code == ResponseCode.SYSTEM_BUSY


async def test_an_incomplete_read_is_repeated(
    tmp_path: Path, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example from NFS, whose client has an old size in its cache."""
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 50)
        await uploaded(broker)
        await deleted(broker, peer)
        assert broker.context.tier is not None
        objects = type(broker.context.tier.objects)
        read = objects.read
        for directory in (QUEUES, LOG):

            def short_read(
                tier: Any, name: str, start: int = 0, size: int | None = None, directory: str = directory
            ) -> bytes:
                data = read(tier, name, start, size)
                return data[: len(data) // 2] if name.startswith(directory) else data

            monkeypatch.setattr(objects, "read", short_read)
            assert (await peer.pull("orders", 12)).code == ResponseCode.SYSTEM_BUSY
            monkeypatch.setattr(objects, "read", read)
        assert await read_all(peer, 0) == sent


async def test_retention_of_the_tier(tmp_path: Path, remoting: RemotingClient) -> None:
    objects = open_objects(str(tmp_path / "tier"), "c", "broker-a")
    async with started(tmp_path / "store", tmp_path / "tier", tiered_store_file_reserved_time=0) as broker:
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 50)
        await uploaded(broker)
        # They stay as long as the log has their files.
        assert len(objects.names(MANIFESTS)) >= 3
        await deleted(broker, peer)

        def is_empty() -> bool:
            broker.jobs.find(UPLOAD).wake()
            return not any(objects.names(directory) for directory in (LOG, QUEUES, INDEX, MANIFESTS))

        await until(is_empty)
        first = broker.store.queue("orders", 0).min_offset
        assert await min_offset(peer) == first > 40
        assert (await peer.pull("orders", 0)).code == ResponseCode.PULL_OFFSET_MOVED
        assert await read_all(peer, first) == sent[first:]


async def test_remains_of_interrupted_uploads(tmp_path: Path, remoting: RemotingClient) -> None:
    objects = open_objects(str(tmp_path / "tier"), "c", "broker-a")
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 50)
        await uploaded(broker)
        await deleted(broker, peer)
    # A crash between the data and the manifest, one during a deletion, and a damaged manifest.
    first, second, third = segment_names(objects)[:3]
    objects.delete(object_name(MANIFESTS, first))
    (tmp_path / "tier/c/broker-a" / LOG / f"{third}.tmp").write_bytes(b"part")
    with objects.create(object_name(MANIFESTS, second)) as writer:
        writer.write(b"{")
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await until(lambda: first not in objects.names(LOG))
        await until(lambda: not any(name.endswith(".tmp") for name in objects.names(LOG)))
        # A damaged segment stays: it may be repaired.
        assert second in objects.names(LOG)
        begin = await min_offset(peer)
        assert 25 < begin < 40
        assert await read_all(peer, begin) == sent[begin:]


async def test_damaged_messages_are_skipped(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 50)
        queue = broker.store.queue("orders", 0)
        places = [queue.unit(offset) for offset in range(5)]
        await uploaded(broker)
        await deleted(broker, peer)
        segment = segment_names(open_objects(str(tmp_path / "tier"), "c", "broker-a"))[0]
        log, units = (tmp_path / "tier/c/broker-a" / name / segment for name in (LOG, QUEUES))
        data = bytearray(log.read_bytes())
        assert places[2] is not None
        data[places[2][0] + 200] ^= 1
        log.write_bytes(data)
        changed = bytearray(units.read_bytes())
        # The unit of the message 3 says that it has 2 GiB.
        changed[3 * 20 + 8 : 3 * 20 + 12] = b"\x7f\xff\xff\xfe"
        units.write_bytes(changed)
        assert await read_all(peer, 0) == sent[:2] + sent[4:]


async def test_a_tier_of_another_store(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path / "old", tmp_path / "tier") as broker:
        await fill(await peer_of(broker, remoting), 50)
        await uploaded(broker)
    async with started(tmp_path / "new", tmp_path / "tier") as broker:
        await until(lambda: job(broker, UPLOAD).failing_since is not None)
        assert "has segments of another store" in str(job(broker, UPLOAD).last_error)
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 100)
        assert await read_all(peer, 0) == sent
        # Still, when the log is longer than the segments.
        broker.jobs.find(UPLOAD).wake()
        await until(lambda: job(broker, UPLOAD).failures >= 2)
        assert broker.context.tier is not None
        assert broker.context.tier.catalog is None


async def test_a_topic_with_a_retention_of_its_own_ends_there(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await fill(peer, 50)
        await uploaded(broker)
        await deleted(broker, peer)
        queue = broker.store.queue("orders", 0)
        assert await min_offset(peer) == 0
        queue.expire_before(queue.min_offset + 1)
        assert await min_offset(peer) == queue.min_offset


def test_the_address_is_checked(tmp_path: Path) -> None:
    settings = config(tmp_path / "store")
    settings.store.tiered_store_file_path = "unheard://bucket"
    with pytest.raises(StoreError, match="unheard://bucket"):
        Broker(settings)


async def test_a_slave_reads_the_tier_of_its_master(tmp_path: Path) -> None:
    """It changes nothing there, and deletes its own log files only when its master has copied them."""
    replicas = Replicas(tmp_path)
    replicas.options = {"broker_cluster_name": "c"}
    replicas.store_options = {
        "mapped_file_size_commit_log": FILE_BYTES,
        "tiered_store_file_path": str(tmp_path / "tier"),
        "file_reserved_time": 0,
        "disk_max_used_space_ratio": 101,
        "disk_space_clean_forcibly_ratio": 101,
        "disk_space_warning_level_ratio": 101,
    }
    async with replicas:
        master, slave = replicas.master, replicas.slave
        peer = await replicas.peer(1)
        sent = await fill(await replicas.peer(), 50)
        await copy_tables(slave)
        await uploaded(master)
        await deleted(master, await replicas.peer())
        await until(lambda: slave.store.flushed_offset == master.store.max_physical_offset)
        # The slave does not know yet what its master has copied.
        assert (await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
        await run_again(slave.jobs, CLEAN)
        assert slave.store.min_physical_offset == 0
        await run_again(slave.jobs, UPLOAD)
        await deleted(slave, peer)
        assert slave.store.queue("orders", 0).min_offset > 40
        assert await min_offset(peer) == 0
        assert await read_all(peer, 0) == sent


async def test_light_queues_do_not_depend_on_the_tier(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path / "store", tmp_path / "tier", enable_lmq=True) as broker:
        peer = await peer_of(broker, remoting)
        await fill(peer, 40, INNER_MULTI_DISPATCH="%LMQ%a")
        await uploaded(broker)
        await deleted(broker, peer)
        assert broker.context.tier is not None
        broker.context.tier.use(None)
        assert (await peer.pull("orders", 0)).code == ResponseCode.SYSTEM_BUSY
        assert (await peer.pull("%LMQ%a", 0)).code == ResponseCode.PULL_OFFSET_MOVED
        assert await min_offset(peer, "%LMQ%a") > 0
