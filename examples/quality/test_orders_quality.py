"""Tests that a run separates valid and invalid orders, and that a repeated run changes nothing."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from orders_quality import run

from gantrymq import AdminClient, Message, Producer, SyncProducer
from gantrymq.arrow import read_topic
from gantrymq.testing.embedded import EmbeddedCluster

VALID = {"id": "order-1", "item": "tea", "quantity": 2}
BODIES = [
    json.dumps(VALID),
    json.dumps(VALID | {"id": "order-2", "quantity": "3"}),
    json.dumps(VALID | {"quantity": 0}),
    json.dumps(VALID | {"id": "order 4"}),
    json.dumps(VALID | {"item": "car"}),
    json.dumps({"id": "order-5"}),
    "no order",
]


async def create_topics(name_server: str) -> None:
    async with AdminClient(name_server) as admin:
        for topic in ("orders", "orders-invalid"):
            await admin.ensure_topic(topic)


def invalid(name_server: str) -> dict[str, str]:
    rows = read_topic(name_server, "orders-invalid", options={"includeProperties": "true"}).read_all()
    found: list[dict[str, Any]] = rows.select(["body", "properties"]).to_pylist()
    assert len(found) == len({row["body"] for row in found})
    return {row["body"].decode(): dict(row["properties"])["reason"] for row in found}


def test_a_day(gantry_cluster: EmbeddedCluster) -> None:
    name_server = gantry_cluster.name_server
    asyncio.run(create_topics(name_server))
    day = datetime.now(UTC).date()
    with SyncProducer(Producer(name_server, "test")) as producer:
        for body in BODIES:
            producer.send(Message("orders", body.encode()))
    # A file system of fsspec that is in memory.
    for _ in range(2):
        assert run(name_server, day, "memory://lake") == (2, 5)
        orders = pd.read_parquet(f"memory://lake/orders-{day}.parquet").sort_values("id")
        assert orders.to_dict("records") == [VALID, VALID | {"id": "order-2", "quantity": 3}]
        reasons = invalid(name_server)
        assert set(reasons) == set(BODIES[2:])
        assert reasons[BODIES[2]] == "quantity: in_range(1, 100)"
        assert reasons[BODIES[3]] == r"id: str_matches('order-\d+')"
        assert reasons[BODIES[4]] == "item: isin(['tea', 'coffee', 'chocolate'])"
        assert all(reasons.values())


def test_a_day_with_valid_orders_only(gantry_cluster: EmbeddedCluster) -> None:
    asyncio.run(create_topics(gantry_cluster.name_server))
    with SyncProducer(Producer(gantry_cluster.name_server, "test")) as producer:
        producer.send(Message("orders", BODIES[0].encode()))
    assert run(gantry_cluster.name_server, datetime.now(UTC).date(), "memory://valid") == (1, 0)
    assert invalid(gantry_cluster.name_server) == {}
