"""The objects of a tier behave alike in a directory and in S3."""

from __future__ import annotations

import asyncio
from pathlib import Path

import boto3
import pytest

from gantrymq.errors import StoreError
from gantrymq.tier.objects import PART_BYTES, open_objects


def test_an_object_exists_when_it_is_complete(address: str) -> None:
    objects = open_objects(address, "cluster", "broker-a")
    assert objects.names("commitlog") == {}
    with objects.create("commitlog/1") as writer:
        writer.write(b"first ")
        assert objects.names("commitlog").get("1") is None
        writer.write(b"second")
    assert objects.names("commitlog") == {"1": 12}
    assert objects.read("commitlog/1") == b"first second"
    assert objects.read("commitlog/1", 6, 3) == b"sec"
    assert objects.read("commitlog/1", 6, 100) == b"second"
    assert objects.read("commitlog/1", 6, 0) == b""
    with objects.create("commitlog/1") as writer:
        pass
    assert objects.names("commitlog") == {"1": 0}
    # Another instance sees the same.
    assert open_objects(address, "cluster", "broker-a").names("commitlog") == {"1": 0}
    assert open_objects(address, "cluster", "broker-b").names("commitlog") == {}
    objects.delete("commitlog/1")
    objects.delete("commitlog/1")
    assert objects.names("commitlog") == {}
    with pytest.raises(FileNotFoundError):
        objects.read("commitlog/1")


def test_an_interrupted_upload_leaves_nothing(address: str) -> None:
    objects = open_objects(address)
    writer = objects.create("index/1")
    # In S3, the first part is sent.
    writer.write(bytes(PART_BYTES + 1))
    writer.__exit__(OSError, OSError(), None)
    assert objects.names("index") == {}


def test_an_interrupted_upload_to_s3_leaves_no_parts(s3_url: str) -> None:
    writer = open_objects(s3_url).create("index/1")
    writer.write(bytes(2 * PART_BYTES))
    client, bucket = boto3.client("s3"), s3_url.split("/")[2]
    assert len(client.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 1
    writer.discard()
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


def test_a_large_object_is_sent_in_parts(address: str) -> None:
    objects = open_objects(address)
    with objects.create("index/1") as writer:
        for letter in b"abc":
            writer.write(bytes([letter]) * PART_BYTES)
    assert objects.read("index/1", PART_BYTES - 1, 2) == b"ab"
    assert objects.names("index") == {"1": 3 * PART_BYTES}


def test_errors_of_the_address(tmp_path: Path) -> None:
    for address in ("unheard://bucket", "ftp://127.0.0.1:1/path", "local:///path", "memory://path"):
        with pytest.raises(StoreError, match=f"{address} is not supported: a tier is a directory, or a URL such as"):
            open_objects(address)
    for address in ("s3://", "s3:///path"):
        with pytest.raises(StoreError, match=f"{address} has no bucket"):
            open_objects(address)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="File exists"):
        open_objects(str(tmp_path / "file")).create("index/1")


async def test_a_store_that_does_not_respond(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no connection before the first read, which makes two attempts."""
    connections = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        objects = open_objects(s3_url)
        assert connections == 0
        with pytest.raises(OSError, match="commitlog/1"):
            await asyncio.to_thread(objects.read, "commitlog/1", 0, 5)
    # aiohttp repeats a request once after a lost connection.
    assert 2 <= connections <= 4


def test_an_unreachable_store(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error of the libraries is an OSError."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    objects = open_objects(f"{s3_url}/elsewhere")
    with pytest.raises(OSError, match="commitlog/1"):
        objects.read("commitlog/1")
    with pytest.raises(OSError, match="brokers/elsewhere"):
        objects.names("commitlog")
