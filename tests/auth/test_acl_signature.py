"""Tests of request signatures, against Apache's example and an independent computation."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from gantrymq.client.credentials import Credentials, rpc_hooks
from gantrymq.errors import ConfigError
from gantrymq.protocol.acl_signature import (
    ACCESS_KEY,
    BOUND_SIGNATURE,
    SECURITY_TOKEN,
    SIGNATURE,
    SIGNED_AT,
    SIGNED_OPAQUE,
    Signer,
)
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
    # The values are those of Apache's AclSignerTest.
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
    credentials = Credentials("rocketmq2", "12345678", "token")
    (hook,) = rpc_hooks(credentials)
    request = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields={"topic": "T"}, body=b"x")
    for _ in range(2):
        hook.before_request("127.0.0.1:1", request)
        assert request.ext_fields[ACCESS_KEY] == "rocketmq2"
        assert request.ext_fields[SECURITY_TOKEN] == "token"
        # Java's signature covers all values except the signature itself.
        values = [value for name, value in sorted(request.ext_fields.items()) if name != SIGNATURE]
        assert request.ext_fields[SIGNATURE] == hmac_sha1("".join(values).encode() + b"x")
        assert SIGNER.is_request_signed(request)
    assert "12345678" not in repr(credentials)


def test_a_bound_signature_covers_code_names_values_and_body() -> None:
    def signed(code: int = RequestCode.GET_MAX_OFFSET, body: bytes = b"x", **fields: str) -> RemotingCommand:
        return RemotingCommand.request(code, fields=fields, body=body)

    request = signed(a="12", b="3")
    SIGNER.sign_request(request, 1_700_000_000_000)
    signature = request.ext_fields[BOUND_SIGNATURE]
    assert SIGNER.is_request_signed(request)
    assert (request.ext_fields[SIGNED_AT], request.ext_fields[SIGNED_OPAQUE]) == ("1700000000000", str(request.opaque))
    assert not Signer("12345679").is_request_signed(request)
    kept = request.ext_fields
    for code, body, changes in [
        (RequestCode.DELETE_TOPIC_IN_BROKER, b"x", {}),
        (RequestCode.GET_MAX_OFFSET, b"y", {}),
        (RequestCode.GET_MAX_OFFSET, b"", {"b": "3x"}),
        (RequestCode.GET_MAX_OFFSET, b"x", {"a": "1", "b": "23"}),
        (RequestCode.GET_MAX_OFFSET, b"x", {SIGNED_AT: "1700000000001"}),
        (RequestCode.GET_MAX_OFFSET, b"x", {SIGNED_OPAQUE: "7"}),
        (RequestCode.GET_MAX_OFFSET, b"x", {"c": ""}),
        (RequestCode.GET_MAX_OFFSET, b"x", {BOUND_SIGNATURE: signature.lower()}),
        (RequestCode.GET_MAX_OFFSET, b"x", {BOUND_SIGNATURE: "\u00e9\ud800"}),
    ]:
        assert not SIGNER.is_request_signed(signed(code, body, **kept | changes))
    renamed = {("B" if name == "b" else name): value for name, value in kept.items()}
    assert not SIGNER.is_request_signed(signed(**renamed))
    # The signature does not cover `opaque`, because a proxy replaces it.
    request.opaque += 1
    assert SIGNER.is_request_signed(request)


def test_keys_from_tools_yml(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("# comment\naccessKey: rocketmq2\nsecretKey: 01234567\n")
    assert Credentials.from_file(file) == Credentials("rocketmq2", "01234567")
    (hook,) = rpc_hooks(Credentials.from_file(file))
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
        Credentials.from_file(file)
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigError, match="can't read"):
        Credentials.from_file(tmp_path / "none.yml")
