"""Tests that the endpoint sends an order to a broker, and responds with an error if no broker is reachable."""

import json

import pytest
from fastapi.testclient import TestClient
from fastapi_shop import app
from received import received

from gantrymq.testing.embedded import EmbeddedCluster


def test_an_order_is_sent(gantry_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", gantry_cluster.name_server)
    with TestClient(app) as client:
        response = client.post("/orders", json={"id": "order-17", "what": "apples"})
    assert response.status_code == 202
    message = received(gantry_cluster.name_server, "web-orders")
    assert (message.msg_id, message.keys) == (response.json()["message"], ["order-17"])
    assert json.loads(message.body) == {"id": "order-17", "what": "apples"}


def test_an_unreachable_broker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedCluster() as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
        with TestClient(app) as client:
            cluster.stop()
            assert client.post("/orders", json={"id": "order-18", "what": "figs"}).status_code == 503
