"""Access control: signatures in a call's metadata, and the users and policies of the brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from access_support import SigningRpc, allow, cluster_with_users, proxy_with_users
from proxy_support import Rpc, message, new_topic, producer_settings

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.credentials import Credentials
from gantrymq.client.doctor.finding import Severity
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.message import Message
from gantrymq.proxy.access.request_permissions import needs
from gantrymq.proxy.access.signature import signed
from gantrymq.proxy.call import METHODS
from gantrymq.proxy.doctor.diagnosis import diagnose_proxy
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with cluster_with_users() as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.name_server, credentials=Credentials("root", "root-secret")) as admin:
        yield admin


@pytest.fixture
async def proxy(cluster: EmbeddedCluster) -> AsyncIterator[Proxy]:
    async with proxy_with_users(cluster) as proxy:
        yield proxy


@pytest.fixture
async def channel(proxy: Proxy) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        yield channel


async def sent(rpc: Rpc, topic: str) -> pb.Status:
    response: rpc_pb.SendMessageResponse = await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(topic)]))
    return response.status


async def test_who_signs_and_may_sends(channel: grpc.aio.Channel, admin: AdminClient, cluster: EmbeddedCluster) -> None:
    topic, other = await new_topic(admin), await new_topic(admin)
    await allow(admin, cluster, "sender", (f"Topic:{topic}", "Pub"))
    rpc = SigningRpc(channel, "sender", "sender-secret")
    assert (await sent(rpc, topic)).code == pb.OK
    refused = await sent(rpc, other)
    assert (refused.code, refused.message) == (
        pb.UNAUTHORIZED,
        f"User:sender has no permission to access Topic:{other} from 127.0.0.1, no matched policies. It needs Pub",
    )
    assert (await sent(SigningRpc(channel, "root", "root-secret"), other)).code == pb.OK


async def test_who_is_unknown_or_signs_wrongly_is_refused(
    channel: grpc.aio.Channel, admin: AdminClient, cluster: EmbeddedCluster
) -> None:
    topic = await new_topic(admin)
    await admin.create_user(cluster.brokers, UserInfo("idle", "idle-secret", user_status="disable"))
    for rpc, remark in (
        (Rpc(channel, "c"), "username cannot be null."),
        (SigningRpc(channel, "nobody", "x"), "User:nobody is not found."),
        (SigningRpc(channel, "root", "wrong"), "check signature failed."),
        (SigningRpc(channel, "idle", "idle-secret"), "User:idle is disabled."),
    ):
        refused = await sent(rpc, topic)
        assert (refused.code, refused.message) == (pb.UNAUTHORIZED, remark)


async def test_a_stream_ends_when_its_settings_need_what_its_user_may_not(
    channel: grpc.aio.Channel, admin: AdminClient, cluster: EmbeddedCluster, proxy: Proxy
) -> None:
    topic, other = await new_topic(admin), await new_topic(admin)
    await allow(admin, cluster, "teller", (f"Topic:{topic}", "Pub"))
    rpc = SigningRpc(channel, "teller", "teller-secret")
    stream = rpc.Telemetry()
    await stream.write(producer_settings(topic))
    assert (await stream.read()).status.code == pb.OK
    await stream.write(producer_settings(other))
    assert (await stream.read()).status.code == pb.UNAUTHORIZED
    assert await stream.read() is grpc.aio.EOF
    assert not proxy.clients.producers(other)


@pytest.mark.parametrize(
    "authorization", ["MQv2-HMAC-SHA1", "x Credential", "x Signature=1", "x Credential=,Signature=1"]
)
def test_a_header_that_says_nobody(authorization: str) -> None:
    with pytest.raises(ProxyError) as caught:
        signed(authorization, "20260101T000000Z")
    assert caught.value.code == pb.UNAUTHORIZED


def test_every_request_has_a_rule() -> None:
    served = {method.request for method in METHODS.values()} - {rpc_pb.SyncLiteSubscriptionRequest}
    for request in served:
        wanted = list(needs(request()))
        # An empty request names no resource. It needs the permission for all resources, or none if it concerns no
        # resource yet.
        assert all("ANY" in str(need.resource.pattern) for need in wanted)
        assert wanted or request in (
            rpc_pb.HeartbeatRequest,
            rpc_pb.NotifyClientTerminationRequest,
            rpc_pb.TelemetryCommand,
        )
        assert not any(need.actions == ("Any",) for need in wanted)


async def test_clients_of_the_remoting_protocol(proxy: Proxy, admin: AdminClient, cluster: EmbeddedCluster) -> None:
    mine, others = [await new_topic(admin) for _ in range(2)]
    await allow(admin, cluster, "older", (f"Topic:{mine}", "Pub"))
    here = proxy.remoting_address
    async with Producer(here, "p", credentials=Credentials("older", "older-secret")) as producer:
        # Brokers verify the client's own signature again.
        assert (await producer.send(Message(mine, b"allowed"))).queue_offset == 0
        with pytest.raises(BrokerError, match="User:older has no permission to access Topic:proxy"):
            await producer.send(Message(others, b"not allowed"))
        address = (await producer.client.routes.get(mine)).broker_datas[0].master_address
        assert address is not None
        with pytest.raises(BrokerError, match="has no permission"):
            await producer.client.api.max_offset(address, mine, 0)
    for credentials, why in (
        (Credentials("older", "wrong"), "check signature failed"),
        (Credentials("nobody", "x"), "is not found"),
    ):
        async with Producer(here, "p", credentials=credentials) as producer:
            with pytest.raises(BrokerError, match=why):
                await producer.send(Message(mine, b"refused"))
    async with Producer(here, "p") as producer:
        with pytest.raises(BrokerError, match="username cannot be null"):
            await producer.send(Message(mine, b"refused"))


async def test_what_the_doctor_says(proxy: Proxy, cluster: EmbeddedCluster, admin: AdminClient) -> None:
    await admin.create_user(cluster.brokers, UserInfo("doctored", "secret"))
    topic = await new_topic(admin)

    async def problems(credentials: Credentials | None, topic: str | None = None) -> list[str]:
        findings = await diagnose_proxy(proxy.address, topic, credentials=credentials)
        return [finding.what for finding in findings if finding.severity is not Severity.OK]

    (finding,) = await problems(None)
    assert finding == "the proxy refuses a call without signature: username cannot be null."
    (finding,) = await problems(Credentials("root", "wrong"))
    assert finding == "the proxy refuses a call of user root: check signature failed."
    assert await problems(Credentials("root", "root-secret"), topic) == []
    assert await problems(Credentials("doctored", "secret")) == []
    (finding,) = await problems(Credentials("doctored", "secret"), topic)
    assert f"User:doctored has no permission to access Topic:{topic}" in finding
