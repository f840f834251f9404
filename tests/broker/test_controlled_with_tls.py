"""Controller mode with mutual TLS on every link.

Brokers also check signatures.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from certificates import Pair
from controlled_support import ControlledBrokers
from wait_until import until

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.credentials import inner_client_hooks
from gantrymq.errors import RemotingError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import ClientAuth, TlsConfig, TlsMode, client_context

AUTH = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    inner_client_authentication_credentials='{"accessKey":"broker","secretKey":"secret12"}',
)


def with_tls(directory: Path, certificate: Pair) -> ControlledBrokers:
    cert, key = certificate
    server = {
        "tls_server_mode": TlsMode.ENFORCING,
        "tls_server_cert_path": cert,
        "tls_server_key_path": key,
        "tls_server_trust_cert_path": cert,
        "tls_server_need_client_auth": ClientAuth.REQUIRE,
    }
    client = {
        "tls_enable": True,
        "tls_client_cert_path": cert,
        "tls_client_key_path": key,
        "tls_client_trust_cert_path": cert,
        "tls_client_auth_server": True,
    }
    replicas = ControlledBrokers(directory, 2, auth=AUTH, **server, **client)
    replicas.namesrv_options = server
    replicas.controller_options = server
    replicas.replication["ha_tls_enable"] = True
    context = client_context(TlsConfig(**client))  # type: ignore[arg-type]
    replicas.remoting = RemotingClient(ssl_context=context, hooks=inner_client_hooks(AUTH))
    return replicas


async def test_a_master_is_followed_and_handed_over(tmp_path: Path, certificate: Pair) -> None:
    async with with_tls(tmp_path, certificate) as replicas:
        await replicas.all_in_sync()
        # The message is acknowledged when both brokers have it.
        assert (await (await replicas.peer(1)).send("orders", b"first")).code == ResponseCode.SUCCESS
        header = ElectMasterRequestHeader(broker_name="broker-a", broker_id=2, designate_elect=True)
        elect = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
        answer = await replicas.remoting.invoke(replicas.controller.address, elect)
        assert answer.code == ResponseCode.SUCCESS
        await until(lambda: replicas.masters() == [2])
        await replicas.all_in_sync()
        assert (await (await replicas.peer(2)).send("orders", b"second")).code == ResponseCode.SUCCESS
        assert replicas.brokers[1].store.max_physical_offset == replicas.brokers[2].store.max_physical_offset


async def test_strangers_are_let_in_nowhere(tmp_path: Path, certificate: Pair) -> None:
    cert, _ = certificate
    async with with_tls(tmp_path, certificate) as replicas:
        await replicas.all_in_sync()
        master = replicas.brokers[1]
        request = RemotingCommand.request(RequestCode.CONTROLLER_GET_METADATA_INFO)
        without_certificate = TlsConfig(tls_enable=True, tls_client_trust_cert_path=cert, tls_client_auth_server=True)
        for context in (None, client_context(without_certificate)):
            stranger = RemotingClient(ssl_context=context)
            for address in (replicas.controller.address, master.replication.ha_address, f"127.0.0.1:{master.port}"):
                with pytest.raises(RemotingError):
                    await stranger.invoke(address, request, 2000)
            await stranger.close()
        # Clients with a certificate but without a signature get no data from brokers.
        unsigned = RemotingClient(ssl_context=client_context(replicas.brokers[2].config))
        tables = RemotingCommand.request(RequestCode.GET_ALL_CONSUMER_OFFSET)
        answer = await unsigned.invoke(f"127.0.0.1:{master.port}", tables)
        assert answer.code == ResponseCode.NO_PERMISSION
        await unsigned.close()
