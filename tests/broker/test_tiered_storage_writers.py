"""Several brokers that write into one tier, after a failover or by mistake, and uploads that fail."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_support import job
from replicated_brokers import Replicas, copy_tables
from tier_support import CLEAN, FILE_BYTES, UPLOAD, deleted, fill, min_offset, peer_of, read_all, started, uploaded
from wait_until import until

from gantrymq.broker import tiered_storage
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.remoting.client import RemotingClient
from gantrymq.tier.catalog_loader import segment_names
from gantrymq.tier.objects import open_objects
from gantrymq.tier.segment import INDEX, LOG, QUEUES


async def test_a_promoted_broker_keeps_its_own_messages(tmp_path: Path, remoting: RemotingClient) -> None:
    """Its log ends in the middle of a segment of the old master, and goes on with other messages."""
    tier = tmp_path / "tier"
    objects = open_objects(str(tier), "c", "broker-a")
    async with started(tmp_path / "a", tier) as old:
        sent = await fill(await peer_of(old, remoting), 55)
        await uploaded(old)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with started(tmp_path / "a", tier) as old:
        peer = await peer_of(old, remoting)
        for number in range(60):
            await peer.send("orders", b"lost-%d" % number)
        await fill(peer, 10)
        await uploaded(old)
        assert len(segment_names(objects)) == 4
        lost = segment_names(objects)[3]
    async with started(tmp_path / "b", tier) as new:
        peer = await peer_of(new, remoting)
        # The last segment does not belong to this log. The others do, and nothing fails.
        await until(lambda: new.context.tier is not None and new.context.tier.catalog is not None)
        tier_of_broker = new.context.tier
        assert tier_of_broker is not None
        assert tier_of_broker.catalog is not None
        assert tier_of_broker.catalog.end == 3 * FILE_BYTES
        assert job(new, UPLOAD).failing_since is None
        for number in range(40):
            body = (b"new-%d" % number).ljust(4000)
            assert (await peer.send("orders", body)).code == ResponseCode.SUCCESS
            sent.append(body)
        await until(lambda: new.store.flushed_offset >= new.store.max_physical_offset)
        await uploaded(new)
        # Both are there.
        assert len(segment_names(objects)) == new.store.max_physical_offset // FILE_BYTES + 1
        await deleted(new, peer)
        assert await min_offset(peer) == 0
        assert await read_all(peer, 0) == sent
    # After a restart, there is nothing but the first message of the log to compare the segments with.
    async with started(tmp_path / "b", tier, tiered_store_file_reserved_time=720) as new:
        peer = await peer_of(new, remoting)
        await uploaded(new)
        assert await read_all(peer, 0) == sent
        # The segment of the old master expires, too.
        new.config.store.tiered_store_file_reserved_time = 0

        def is_empty() -> bool:
            new.jobs.find(UPLOAD).wake()
            return not segment_names(objects) and lost not in objects.names(LOG)

        await until(is_empty)


async def test_two_clusters_with_the_same_names(tmp_path: Path, remoting: RemotingClient) -> None:
    """The second one to copy a file reports an error, and deletes nothing."""
    tier = tmp_path / "tier"
    async with started(tmp_path / "a", tier) as one, started(tmp_path / "b", tier) as two:
        for broker in (one, two):
            catalog = broker.context.tier
            await until(lambda catalog=catalog: catalog is not None and catalog.catalog is not None)  # type: ignore[misc]
        first, second = await peer_of(one, remoting), await peer_of(two, remoting)
        sent = await fill(first, 60)
        await uploaded(one)
        others = await fill(second, 60, "other")
        await until(lambda: two.store.flushed_offset >= two.store.max_physical_offset)
        two.jobs.find(UPLOAD).wake()
        await until(lambda: job(two, UPLOAD).failing_since is not None)
        assert "has segments of another store" in str(job(two, UPLOAD).last_error)
        await deleted(one, first)
        assert (await second.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
        two.jobs.find(CLEAN).wake()
        assert await min_offset(first) == 0
        assert await read_all(first, 0) == sent
        assert await read_all(second, 0, "other") == others
        assert two.store.min_physical_offset == 0


async def test_a_broker_that_is_demoted_during_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes no manifest, and reads the segments again."""
    replicas = Replicas(tmp_path)
    replicas.options = {"broker_cluster_name": "c"}
    replicas.store_options = {
        "mapped_file_size_commit_log": FILE_BYTES,
        "tiered_store_file_path": str(tmp_path / "tier"),
    }
    objects = open_objects(str(tmp_path / "tier"), "c", "broker-a")
    has_begun, may_go_on = threading.Event(), threading.Event()
    copy: Callable[..., None] = tiered_storage.copy_log_file

    def slow_copy(*arguments: Any) -> None:
        has_begun.set()
        may_go_on.wait(60)
        copy(*arguments)

    monkeypatch.setattr(tiered_storage, "copy_log_file", slow_copy)
    async with replicas:
        master = replicas.master
        sent = await fill(await replicas.peer(), 20)
        await copy_tables(replicas.slave)
        master.jobs.find(UPLOAD).wake()
        await until(has_begun.is_set)
        feature = next(part for part in master.features.all if isinstance(part, tiered_storage.TieredStorage))
        await feature.become_slave()
        has_begun.clear()
        may_go_on.set()
        # The upload ends without a manifest. The broker's role is still master, so it begins again.
        await until(has_begun.is_set)
        await uploaded(master)
        assert len(segment_names(objects)) == 1
        assert job(master, UPLOAD).failures == 0
        assert await read_all(await replicas.peer(), 0) == sent


async def test_a_second_master_replaces_no_object(tmp_path: Path, remoting: RemotingClient) -> None:
    """Two masters copy the same log. Their queues can have another order."""
    tier = tmp_path / "tier"
    objects = open_objects(str(tier), "c", "broker-a")
    async with started(tmp_path / "a", "") as broker:
        peer = await peer_of(broker, remoting)
        sent: dict[str, list[bytes]] = {"orders": [], "first": []}
        for number in range(20):
            for topic, bodies in sent.items():
                bodies.append(b"%d" % number + bytes(4000))
                await peer.send(topic, bodies[-1])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with started(tmp_path / "a", tier) as one, started(tmp_path / "b", tier) as two:
        await uploaded(one)
        await uploaded(two)
        for directory in (LOG, QUEUES, INDEX):
            assert set(objects.names(directory)) == set(segment_names(objects))
        for broker in (one, two):
            peer = await peer_of(broker, remoting)
            await deleted(broker, peer)
            for topic, bodies in sent.items():
                assert await min_offset(peer, topic) == 0
                assert await read_all(peer, 0, topic) == bodies


async def test_a_failed_upload_prevents_no_deletion(
    tmp_path: Path, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full tier has space again when segments expire."""
    objects = open_objects(str(tmp_path / "tier"), "c", "broker-a")
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await fill(peer, 60)
        await uploaded(broker)
        await deleted(broker, peer)
        assert len(segment_names(objects)) >= 3

        def full(*arguments: Any) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(tiered_storage, "copy_log_file", full)
        await fill(peer, 20)
        await until(lambda: broker.store.flushed_offset >= broker.store.max_physical_offset)
        broker.jobs.find(UPLOAD).wake()
        await until(lambda: job(broker, UPLOAD).failing_since is not None)
        broker.config.store.tiered_store_file_reserved_time = 0

        def is_empty() -> bool:
            broker.jobs.find(UPLOAD).wake()
            return not segment_names(objects)

        await until(is_empty)
        assert str(job(broker, UPLOAD).last_error) == "OSError: no space left"


async def test_a_file_that_cannot_be_read_blocks_no_other(
    tmp_path: Path, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = open_objects(str(tmp_path / "tier"), "c", "broker-a")
    copy: Callable[..., None] = tiered_storage.copy_log_file
    damaged = f"{FILE_BYTES:020d}"

    def failing_copy(objects: Any, name: str, *arguments: Any) -> None:
        if name.startswith(damaged):
            raise OSError("input/output error")
        copy(objects, name, *arguments)

    monkeypatch.setattr(tiered_storage, "copy_log_file", failing_copy)
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        sent = await fill(peer, 60)
        await uploaded(broker)
        assert [name[:20] for name in segment_names(objects)] == [f"{FILE_BYTES * number:020d}" for number in (0, 2)]
        monkeypatch.setattr(tiered_storage, "copy_log_file", copy)
        broker.jobs.find(UPLOAD).wake()
        await until(lambda: len(segment_names(objects)) == 3)
        await deleted(broker, peer)
        assert await read_all(peer, 0) == sent


async def test_a_failed_deletion_is_repeated(
    tmp_path: Path, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = open_objects(str(tmp_path / "tier"), "c", "broker-a")
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await fill(peer, 30)
        await uploaded(broker)
        await deleted(broker, peer)
        delete = type(objects).delete

        def failing_delete(self: Any, name: str) -> None:
            if name.startswith(LOG):
                raise OSError("forbidden")
            delete(self, name)

        monkeypatch.setattr(type(objects), "delete", failing_delete)
        broker.config.store.tiered_store_file_reserved_time = 0
        broker.jobs.find(UPLOAD).wake()
        await until(lambda: job(broker, UPLOAD).failing_since is not None)
        assert objects.names(LOG)
        monkeypatch.setattr(type(objects), "delete", delete)

        def is_empty() -> bool:
            broker.jobs.find(UPLOAD).wake()
            return not objects.names(LOG)

        await until(is_empty)
