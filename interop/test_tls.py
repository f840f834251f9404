"""Apache's Java clients over TLS to servers without a configured certificate. Both servers create one themselves."""

from __future__ import annotations

import pytest
from conftest import ONE_KIND, Cluster
from programs import Sent, consume, produce, sample

pytestmark = pytest.mark.interop(feature="TLS", clients="java", servers="{cluster}")


@ONE_KIND
def test_a_server_without_a_certificate(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = sample(10)
    produce(cluster.address, topic, [message.line() for message in sent[:5]])
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dtls.enable=true")
    produce(cluster.address, topic, [message.line() for message in sent[5:]])
    received = consume(cluster.address, topic, len(sent))
    assert sorted(map(Sent.of, received)) == sorted(sent)
    if cluster.broker.name.startswith("gantry"):
        for server in (cluster.namesrv, cluster.broker):
            assert server.log().count("TLS with a certificate made just now") == 1
