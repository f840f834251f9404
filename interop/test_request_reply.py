"""Requests and replies between Apache's clients."""

from __future__ import annotations

import pytest
from conftest import ONE_KIND, Cluster
from programs import ask, mqadmin, replier

pytestmark = pytest.mark.interop(feature="request and reply", clients="java", servers="{cluster}", version="{version}")


@ONE_KIND
@pytest.mark.parametrize("version", ["5.5", "5.4", "4.9"])
def test_every_request_is_answered(cluster: Cluster, topic: str, version: str) -> None:
    mqadmin(cluster.address, "updateTopic", "-c", "DefaultCluster", "-t", topic)

    with replier(cluster.address, topic, version=version):
        answers = ask(cluster.address, topic, 10, version=version)

    assert answers == [f"re: question {i}" for i in range(10)]
