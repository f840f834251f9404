"""Tests that the messages of all queues are counted, in tasks of Ray."""

import asyncio
import json
import os
from collections.abc import Iterator

import pyarrow as pa
import pytest
import ray
from orders_by_tag import queues, read, run

from gantrymq.arrow import read_topic, write_topic
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    # With authentication, Ray would write a token to the home directory.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


def test_orders_of_all_queues(gantry_cluster: EmbeddedCluster) -> None:
    name_server = gantry_cluster.name_server
    bodies = [f"order-{number}" for number in range(1000)]
    tags = ["paid" if number % 4 else "sent" for number in range(1000)]
    write_topic(name_server, "orders", pa.table({"body": bodies, "tags": tags}))
    assert len(asyncio.run(queues(name_server, "orders"))) > 1
    rows = read(name_server, "orders").take_all()
    assert sorted((row["body"].decode(), row["tags"]) for row in rows) == sorted(zip(bodies, tags, strict=True))
    assert ray.data.from_arrow(read_topic(name_server, "orders").read_all()).count() == 1000
    assert run(name_server) == 2
    counts = read_topic(name_server, "orders-by-tag", columns=["keys", "body"]).read_all().to_pylist()
    assert {row["keys"]: json.loads(row["body"])["orders"] for row in counts} == {"paid": 750, "sent": 250}
