"""Fixtures: an object store in a directory, and one of S3, served by moto."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

#: moto has the buckets of all its servers in one process.
_numbers = count()


@pytest.fixture
def s3_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Returns the URL of an empty bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint,
        }.items():
            monkeypatch.setenv(name, value)
        bucket = f"tier-{next(_numbers)}"
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
        yield f"s3://{bucket}/brokers"
    finally:
        server.stop()


@pytest.fixture(params=["directory", "file", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns an address for each kind of object store."""
    match request.param:
        case "s3":
            url: str = request.getfixturevalue("s3_url")
            return url
        case "file":
            return f"file://{tmp_path}/tier"
    return str(tmp_path / "tier")
