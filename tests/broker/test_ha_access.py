"""Access control of the HA port, tested with whole brokers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from struct import pack

import pytest
from broker_support import config
from certificates import Pair
from replicated_brokers import Replicas
from wait_until import until

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.user_table import UserTable
from gantrymq.broker.broker import Broker
from gantrymq.broker.replication.ha_access import HaAccess
from gantrymq.errors import ConfigError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.signatures import SigningHook
from gantrymq.remoting.tls import ClientAuth, TlsMode
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.frames import encode_opening, encode_report

AUTH = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    inner_client_authentication_credentials='{"accessKey":"broker","secretKey":"secret12"}',
)


def guarded(directory: Path, slaves: int) -> Replicas:
    replicas = Replicas(directory, slaves)
    replicas.options["auth"] = AUTH
    replicas.remoting = RemotingClient(hooks=[SigningHook("broker", "secret12")])
    return replicas


async def test_a_slave_that_signs_has_what_is_acknowledged(tmp_path: Path) -> None:
    async with guarded(tmp_path, 1) as replicas:
        assert (await (await replicas.peer()).send("orders", b"body")).code == ResponseCode.SUCCESS
        assert replicas.slave.store.max_physical_offset == replicas.master.store.max_physical_offset


async def test_a_forged_slave_makes_no_send_succeed(tmp_path: Path) -> None:
    """A forged slave cannot make a send succeed. It acknowledges all future log offsets and reads nothing."""
    replicas = guarded(tmp_path, 0)
    replicas.replication = {"in_sync_replicas": 2, "slave_timeout": 500}
    async with replicas:
        peer = await replicas.peer()
        host, _, port = replicas.master.replication.ha_address.rpartition(":")
        got = b""
        for forged in (
            encode_opening(1) + encode_report(1, 1, checked=True),
            pack(">q", 1) + pack(">q", 1 << 40),
            pack(">ihhq", 1, 2, 2, 1) + pack(">iq", 2, 1 << 40),
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(forged)
            sent = await peer.send("orders", b"a secret")
            assert sent.code in (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.5):
                    got += await reader.read(1 << 16)
            writer.close()
        assert b"a secret" not in got
        assert not replicas.master.replication.slaves()


async def test_an_unsigned_slave_is_allowed_and_refused_while_the_brokers_run(tmp_path: Path) -> None:
    replicas = guarded(tmp_path, 1)
    replicas.replication["ha_allow_unsigned"] = True
    async with replicas:
        master, slave = replicas.master, replicas.slave
        [before] = master.replication.slaves()
        for broker in (slave, master):
            broker.config.replication.ha_allow_unsigned = False
            broker.context.events.config_changed.publish()
        # The slave is disconnected once because it did not sign. It then reconnects with a signature.
        await until(lambda: master.replication.slaves() and before not in master.replication.slaves())


@pytest.mark.parametrize(("allowed", "is_let_in"), [("10.0.0.*", False), ("10.0.0.*;127.0.0.1", True)])
async def test_only_allowed_addresses_connect(tmp_path: Path, allowed: str, is_let_in: bool) -> None:
    broker = Broker(config(tmp_path / "store", replication=ReplicationConfig(ha_allowed_addresses=allowed.split(";"))))
    await broker.start()
    try:
        host, _, port = broker.replication.ha_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        if is_let_in:
            writer.write(encode_opening(1) + encode_report(0, 1, checked=True))
            await until(lambda: len(broker.replication.slaves()) == 1)
        else:
            assert await reader.read() == b""
            assert not broker.replication.slaves()
        writer.close()
    finally:
        await broker.stop()


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="haAllowedAddresses"):
        config(tmp_path, replication=ReplicationConfig(ha_allowed_addresses=["broker-a"]))


def test_mutual_tls_needs_no_signature(tmp_path: Path, certificate: Pair) -> None:
    cert, key = certificate
    tls = {
        "tls_server_mode": TlsMode.ENFORCING,
        "tls_server_cert_path": cert,
        "tls_server_key_path": key,
        "tls_server_trust_cert_path": cert,
    }
    for client_auth, ha_tls, is_needed in (
        (ClientAuth.REQUIRE, True, False),
        (ClientAuth.OPTIONAL, True, True),
        (ClientAuth.REQUIRE, False, True),
    ):
        replication = ReplicationConfig(ha_tls_enable=ha_tls)
        settings = config(tmp_path, auth=AUTH, replication=replication, tls_server_need_client_auth=client_auth, **tls)
        access = HaAccess(settings, UserTable())
        assert access.needs_handshake is is_needed
        replication.ha_allow_unsigned = True
        assert not access.needs_handshake
