"""A controller with `authenticationEnabled`: requests that it accepts, and changes that strangers attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from controller_support import NAME, Broker, controller_config, running

from gantrymq.config import load_properties, parse_properties
from gantrymq.controller.server import Controller
from gantrymq.errors import ConfigError
from gantrymq.protocol.acl_signature import ACCESS_KEY, BOUND_SIGNATURE, SIGNATURE, SIGNED_AT, SIGNED_OPAQUE, Signer
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import RpcHook
from gantrymq.remoting.signatures import SigningHook

AUTH: dict[str, object] = {
    "authentication_enabled": True,
    "init_authentication_user": '{"username":"admin","password":"admin-secret"}',
    "inner_client_authentication_credentials": '{"accessKey":"broker","secretKey":"secret12"}',
}


class JavaHook:
    """Signs requests as Java clients do."""

    def __init__(self, access_key: str, secret_key: str) -> None:
        self._access_key, self._signer = access_key, Signer(secret_key)

    def before_request(self, address: str, request: RemotingCommand) -> None:
        request.ext_fields[ACCESS_KEY] = self._access_key
        request.ext_fields[SIGNATURE] = self._signer.sign(request.ext_fields, request.body, request.version)

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None: ...


async def codes_of(controller: Controller, hooks: Sequence[RpcHook]) -> set[int]:
    """Sends each kind of request, and returns the response codes."""
    client = RemotingClient(hooks=hooks)
    try:
        requests = [RemotingCommand.request(code) for code in sorted(controller.request_codes)]
        return {(await client.invoke(controller.address, request)).code for request in requests}
    finally:
        await client.close()


@pytest.mark.parametrize(
    "hooks",
    [
        [],
        [SigningHook("nobody", "secret12")],
        [SigningHook("broker", "wrong")],
        [JavaHook("broker", "wrong")],
        [SigningHook("admin", "secret12")],
    ],
)
async def test_strangers_change_and_learn_nothing(tmp_path: Path, hooks: list[RpcHook]) -> None:
    async with running(tmp_path, **AUTH) as controller:
        assert await codes_of(controller, hooks) == {ResponseCode.NO_PERMISSION}
        assert (len(controller.live_brokers), len(controller.replicas)) == (0, 0)


@pytest.mark.parametrize("new_hook", [SigningHook, JavaHook])
@pytest.mark.parametrize("keys", [("broker", "secret12"), ("admin", "admin-secret")])
async def test_brokers_and_administrators_sign(
    tmp_path: Path, new_hook: Callable[[str, str], RpcHook], keys: tuple[str, str]
) -> None:
    async with running(tmp_path, **AUTH) as controller:
        broker = Broker(controller, hooks=[new_hook(*keys)])
        await broker.start()
        assert (await broker.elect()).master_broker_id == broker.broker_id
        await broker.die()


async def test_forged_heartbeats_keep_no_dead_master(tmp_path: Path) -> None:
    async with running(tmp_path, **AUTH) as controller:
        hooks = [SigningHook("broker", "secret12")]
        first, second = Broker(controller, at="127.0.0.1:1", hooks=hooks), Broker(controller, hooks=hooks)
        await first.start()
        assert (await first.elect()).master_broker_id == 1
        await second.start()
        stranger = Broker(controller, at="127.0.0.1:1")
        stranger.broker_id = 1
        with pytest.raises(AssertionError, match="the request has none"):
            await stranger.heartbeat(epoch=9, offset=1 << 40)
        known = controller.replicas.get(NAME)
        assert known is not None
        assert (known.master, known.master_epoch) == (1, 1)
        for broker in (first, second, stranger):
            await broker.die()


async def test_bound_signatures_can_be_demanded(tmp_path: Path) -> None:
    async with running(tmp_path, **AUTH, bound_signature_required=True) as controller:
        assert await codes_of(controller, [JavaHook("broker", "secret12")]) == {ResponseCode.NO_PERMISSION}
        broker = Broker(controller, hooks=[SigningHook("broker", "secret12")])
        await broker.start()
        await broker.die()


async def test_a_recorded_request_is_good_for_itself_alone(tmp_path: Path) -> None:
    """A recorded request cannot be reused.

    The test sends its fields with another code, and again on the same connection.
    """
    async with running(tmp_path, **AUTH) as controller:
        recorded = RemotingCommand.request(RequestCode.CONTROLLER_GET_METADATA_INFO)
        SigningHook("broker", "secret12").before_request("", recorded)
        fields = dict(recorded.ext_fields)
        assert {BOUND_SIGNATURE, SIGNED_AT, SIGNED_OPAQUE} < fields.keys()
        client = RemotingClient()
        answers = [
            await client.invoke(controller.address, RemotingCommand.request(code, fields=fields))
            for code in (
                RequestCode.GET_CONTROLLER_CONFIG,
                RequestCode.CONTROLLER_GET_METADATA_INFO,
                RequestCode.CONTROLLER_GET_METADATA_INFO,
            )
        ]
        assert [answer.code for answer in answers] == [
            ResponseCode.NO_PERMISSION,
            ResponseCode.SUCCESS,
            ResponseCode.NO_PERMISSION,
        ]
        assert answers[0].remark == "check signature failed. User:broker"
        assert "has come before" in (answers[2].remark or "")
        await client.close()


async def test_credentials_are_kept_and_not_shown(tmp_path: Path) -> None:
    async with running(tmp_path, **AUTH) as controller:
        admin = Broker(controller, hooks=[SigningHook("admin", "admin-secret")])
        shown = await admin.do(RequestCode.GET_CONTROLLER_CONFIG)
        assert "secret" not in shown.body.decode()
        assert parse_properties(shown.body.decode(), source="test")["authenticationEnabled"] == "true"
        for key in ("authenticationEnabled", "innerClientAuthenticationCredentials", "boundSignatureRequired"):
            answer = await admin.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, body=f"{key}=false".encode())
            assert answer.code == ResponseCode.NO_PERMISSION
        await admin.do(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"scanInactiveMasterInterval=4000")
        written = load_properties(controller.config.config_store_path)
        assert written["initAuthenticationUser"] == AUTH["init_authentication_user"]
        await admin.die()


@pytest.mark.parametrize(
    "changes",
    [
        {"authentication_enabled": True},
        {"init_authentication_user": "admin:secret12"},
        {"inner_client_authentication_credentials": '{"accessKey":"secret12"}'},
        {"inner_client_authentication_credentials": '{"accessKey":"a","secretKey":" "}'},
    ],
)
async def test_users_that_cannot_be_read(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"innerClientAuthenticationCredentials|initAuthenticationUser") as error:
        Controller(controller_config(tmp_path, **changes))
    assert "secret12" not in str(error.value)
