"""Apache's remoting clients 4.9 and 5.5 with Apache's proxy and this project's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import Sent, ask, consume, produce, replier, sample
from proxies import gantry_proxy, java_proxy, remoting_address
from servers import gantry_broker, gantry_namesrv, java_broker, java_namesrv
from test_pop import GROUP, body_of, line, pop, set_up

from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.topic_config import TopicConfig

pytestmark = pytest.mark.interop(feature="send and receive", clients="java", servers="{proxied}")

KINDS = {
    "java": (java_namesrv, java_broker, java_proxy, 2),
    "gantry": (gantry_namesrv, gantry_broker, gantry_proxy, 2),
    "gantry-over-java": (java_namesrv, java_broker, gantry_proxy, 1),
}
ONE_BROKER = pytest.mark.parametrize("proxied", ["gantry-over-java"], indirect=True)
OF_BOTH = pytest.mark.parametrize("proxied", ["java", "gantry"], indirect=True)


@dataclass(frozen=True)
class Proxied:
    """A proxy with some brokers, by its address for these clients."""

    name_server: str
    here: str

    def new_topic(self) -> str:
        topic = f"interop_{uuid.uuid4().hex[:8]}"

        async def create() -> None:
            async with AdminClient(self.name_server) as admin:
                await admin.create_topic(TopicConfig(topic, 2, 2), cluster="DefaultCluster")

        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, create()).result()
        return topic


@pytest.fixture(scope="module")
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    start_name_server, start_broker, start_proxy, brokers = KINDS[request.param]
    directory: Path = tmp_path_factory.mktemp(f"proxied-{request.param}")
    servers = [start_name_server(directory / "namesrv")]
    name_server = servers[0].address
    try:
        for n in range(brokers):
            servers.append(start_broker(directory / f"broker{n}", name_server, brokerName=f"broker-{n}"))
        servers.append(start_proxy(directory / "proxy", name_server))
        yield Proxied(name_server, remoting_address(servers[-1]))
    finally:
        for server in reversed(servers):
            server.kill()


@OF_BOTH
def test_every_way_to_send_arrives(proxied: Proxied) -> None:
    topic = proxied.new_topic()
    everything: list[Sent] = []
    for number, mode in enumerate(("sync", "async", "batch", "oneway")):
        sent = sample(20, first=100 * number)
        produce(proxied.here, topic, [message.line() for message in sent], mode=mode)
        everything += sent
    received = consume(proxied.here, topic, len(everything))
    assert sorted(map(Sent.of, received)) == sorted(everything)


@pytest.mark.interop(version="4.9.7")
@ONE_BROKER
def test_clients_of_4_9(proxied: Proxied) -> None:
    """These clients do not name the broker in their requests, so there is only one broker."""
    topic = proxied.new_topic()
    sent = sample(40)
    produce(proxied.here, topic, [message.line() for message in sent], version="4.9")
    received = consume(proxied.here, topic, 40, mode="orderly", version="4.9")
    assert sorted(map(Sent.of, received)) == sorted(sent)


@OF_BOTH
@pytest.mark.parametrize("mode", ["retry", "orderly", "pull"])
def test_other_consumers(proxied: Proxied, mode: str) -> None:
    topic = proxied.new_topic()
    sent = sample(6)
    produce(proxied.here, topic, [message.line() for message in sent])
    received = consume(proxied.here, topic, 12 if mode == "retry" else 6, mode=mode, group=f"g_{topic}")
    bodies = sorted(message.body for message in map(Sent.of, received))
    assert bodies == sorted([message.body for message in sent] * (2 if mode == "retry" else 1))


@pytest.mark.interop(feature="POP")
@pytest.mark.parametrize("proxied", ["gantry"], indirect=True)
def test_a_consumer_that_pops(proxied: Proxied, tmp_path: Path) -> None:
    topic = proxied.new_topic()
    set_up(proxied.name_server, topic, GROUP)
    produce(proxied.here, topic, [line(f"{n}") for n in range(10)])
    received = pop(proxied.here, topic, GROUP, 10, tmp_path)
    assert sorted(map(body_of, received)) == [f"{n}" for n in range(10)]


@pytest.mark.interop(feature="request and reply")
@pytest.mark.parametrize("proxied", ["gantry", "gantry-over-java"], indirect=True)
@pytest.mark.parametrize("beside", ["nobody", "asker", "replier"])
def test_requests_are_replied_to(proxied: Proxied, beside: str) -> None:
    """Apache's proxy does not forward these requests. One of the two clients may connect to the brokers directly."""
    topic = proxied.new_topic()
    asker, answerer = (proxied.name_server if beside == each else proxied.here for each in ("asker", "replier"))
    with replier(answerer, topic):
        assert sorted(ask(asker, topic, 4)) == [f"re: question {n}" for n in range(4)]
