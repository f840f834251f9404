"""Signatures, against Apache's example and a computation of our own."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from gantrymq.client.acl_hook import AclHook
from gantrymq.errors import ConfigError
from gantrymq.protocol.acl_signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, Signer
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand

KEY = "12345678"
SIGNER = Signer(KEY)


def hmac_sha1(data: bytes, key: str = KEY) -> str:
    return base64.b64encode(hmac.new(key.encode(), data, hashlib.sha1).digest()).decode()


def test_values_in_the_order_of_their_names_then_the_body() -> None:
    fields = {"topic": "T", "AccessKey": "rocketmq2", "b": "2", "a": "1", SIGNATURE: "not signed"}
    assert SIGNER.sign(fields, b"body", 479) == hmac_sha1(b"rocketmq212Tbody")


def test_apaches_example() -> None:
    # AclSignerTest.
    assert SIGNER.sign({"a": "Rocket", "b": "MQ"}, b"", 479) == "IUc8rrO/0gDch8CjObLQsW2rsiA="


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_keys_of_any_length(length: int) -> None:
    key = ("k\u00e9y" * length)[:length]
    assert Signer(key).sign({"a": "1"}, b"2", 479) == hmac_sha1(b"12", key)


def test_old_clients_add_one_field_after_signing() -> None:
    fields = {"topic": "T", "_UNIQUE_KEY_QUERY": "true"}
    assert SIGNER.sign(fields, b"", 399) == hmac_sha1(b"T")
    assert SIGNER.sign(fields, b"", 401) == hmac_sha1(b"trueT")


def test_what_was_changed_on_the_way_is_not_signed() -> None:
    fields = {"topic": "T"}
    fields[SIGNATURE] = SIGNER.sign(fields, b"body", 479)
    assert SIGNER.is_signed(fields, b"body", 479)
    assert not SIGNER.is_signed(fields, b"bodY", 479)
    assert not SIGNER.is_signed(fields | {"topic": "U"}, b"body", 479)
    assert not Signer("12345679").is_signed(fields, b"body", 479)
    assert not SIGNER.is_signed({"topic": "T"}, b"body", 479)
    assert not SIGNER.is_signed({"topic": "T", SIGNATURE: "\u00e9\ud800"}, b"body", 479)


def test_the_hook_signs_again_what_is_sent_again() -> None:
    hook = AclHook("rocketmq2", "12345678", "token")
    request = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields={"topic": "T"}, body=b"x")
    for _ in range(2):
        hook.before_request("127.0.0.1:1", request)
        assert request.ext_fields[ACCESS_KEY] == "rocketmq2"
        assert request.ext_fields[SECURITY_TOKEN] == "token"
        assert request.ext_fields[SIGNATURE] == hmac_sha1(b"rocketmq2tokenTx")
    assert "12345678" not in repr(hook)


def test_keys_from_tools_yml(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("# comment\naccessKey: rocketmq2\nsecretKey: 01234567\n")
    hook = AclHook.from_file(file)
    request = RemotingCommand.request(RequestCode.GET_MAX_OFFSET)
    hook.before_request("127.0.0.1:1", request)
    assert Signer("01234567").is_signed(request.ext_fields, b"", request.version)


@pytest.mark.parametrize(
    "text", ["", "accessKey: a\n", "- a\n", "accessKey: [\nsecretKey: hush\n", "accessKey: ''\nsecretKey: x"]
)
def test_a_tools_yml_without_keys_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        AclHook.from_file(file)
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigError, match="can't read"):
        AclHook.from_file(tmp_path / "none.yml")
