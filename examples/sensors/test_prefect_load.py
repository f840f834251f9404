"""Tests that a run of the flow loads only new messages, and announces them."""

import json
from pathlib import Path

from lagging_group import received, send
from prefect.testing.utilities import prefect_test_harness
from prefect_load import load_orders

from gantrymq.testing.embedded import EmbeddedCluster


def test_the_flow(gantry_cluster: EmbeddedCluster, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    with prefect_test_harness(server_startup_timeout=400):
        send(gantry_cluster.name_server, 3)
        assert load_orders(gantry_cluster.name_server, path) == 3
        assert path.read_bytes() == b"42 apples\n" * 3
        assert load_orders(gantry_cluster.name_server, path) == 0
        send(gantry_cluster.name_server, 1)
        assert load_orders(gantry_cluster.name_server, path) == 1
    assert path.read_bytes() == b"42 apples\n" * 4
    announced = sorted(
        json.loads(message.body)["messages"] for message in received(gantry_cluster.name_server, "loads", 2)
    )
    assert announced == [1, 3]
