"""Tests of plain_acl.yml: its contents, the permissions that each request needs, and reloads after a change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gantrymq.auth.guard import Caller
from gantrymq.auth.permission import Guarded
from gantrymq.auth.plain_access import PlainAccess
from gantrymq.auth.plain_acl import Perm, parse_plain_acl
from gantrymq.auth.plain_acl_file import PlainAclFiles
from gantrymq.errors import ConfigError, RequestRefused
from gantrymq.protocol.acl_signature import Signer
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.bodies.pop import BatchAck, BatchAckBody
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.remoting.signatures import SigningHook

#: Apache's example, with one more account.
TEXT = b"""
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 01234567
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""
HOST = "127.0.0.1"
BROKER = Guarded("c", lambda physical_offset: None)


@pytest.fixture
def access() -> PlainAccess:
    return PlainAccess(parse_plain_acl(TEXT, "plain_acl.yml"), BROKER)


def request(
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    access_key: str = "RocketMQ",
    secret_key: str = "12345678",
) -> RemotingCommand:
    command = RemotingCommand.request(code, fields=fields, body=body)
    SigningHook(access_key, secret_key).before_request("", command)
    return command


def refusal(access: PlainAccess, command: RemotingCommand, host: str = HOST) -> str | None:
    try:
        access.check(Caller(host), command)
    except RequestRefused as e:
        return f"{ResponseCode(e.code).name}: {e}"
    return None


def heartbeat(group: str, topic: str) -> bytes:
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData(topic), SubscriptionData(f"%RETRY%{group}")])
    return encode_json(HeartbeatData("client", [], [consumer]))


def batch_ack(group: str, topic: str) -> bytes:
    return encode_json(BatchAckBody("broker-a", [BatchAck(group, topic, "0", 0, 0, 0, 1, 60_000)]))


def test_digits_stay_as_they_are_written() -> None:
    acl = parse_plain_acl(TEXT, "plain_acl.yml")
    assert acl.accounts["rocketmq2"].signer.sign({}, b"", 479) == Signer("01234567").sign({}, b"", 479)
    assert acl.accounts["rocketmq2"].is_admin
    account = acl.accounts["RocketMQ"]
    assert account.default_topic_perm is Perm.DENY
    assert account.perms["topicB"] == Perm.PUB | Perm.SUB
    assert account.perms["%RETRY%groupC"] is Perm.SUB
    assert "12345678" not in repr(account)


def test_trusted_addresses_need_no_account(access: PlainAccess) -> None:
    unsigned = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert refusal(access, unsigned, "10.10.103.7") is None
    assert refusal(access, unsigned, "10.10.104.7") == "NO_PERMISSION: No accessKey is configured"
    unsigned.ext_fields["AccessKey"] = "rocketmq2"
    assert refusal(access, unsigned, "192.168.1.4") is None
    assert refusal(access, unsigned) == "NO_PERMISSION: Check signature failed for accessKey=rocketmq2"


def test_signatures(access: PlainAccess) -> None:
    fields = {"b": "topicB"}
    assert refusal(access, request(RequestCode.SEND_MESSAGE_V2, fields)) is None
    assert (
        refusal(access, request(RequestCode.SEND_MESSAGE_V2, fields, secret_key="12345679"))
        == "NO_PERMISSION: Check signature failed for accessKey=RocketMQ"
    )
    assert (
        refusal(access, request(RequestCode.SEND_MESSAGE_V2, fields, access_key="unknown"))
        == "NO_PERMISSION: No acl config for unknown"
    )
    changed = request(RequestCode.SEND_MESSAGE_V2, fields)
    changed.ext_fields["b"] = "topicA"
    assert "signature" in str(refusal(access, changed))


@pytest.mark.parametrize(
    ("code", "fields", "body", "refused"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "topicB"}, b"", None),
        (
            RequestCode.SEND_MESSAGE,
            {"topic": "topicC"},
            b"",
            "No permission for topic:topicC: accessKey=RocketMQ needs PUB, has SUB",
        ),
        (
            RequestCode.SEND_MESSAGE_V2,
            {"b": "other"},
            b"",
            "No default permission for topic:other: accessKey=RocketMQ needs PUB, has DENY",
        ),
        (RequestCode.SEND_BATCH_MESSAGE, {"b": "topicA"}, b"", "No permission for topic:topicA"),
        (RequestCode.SEND_MESSAGE_V2, {"a": "groupC", "b": "%RETRY%groupC"}, b"", None),
        (RequestCode.SEND_MESSAGE_V2, {"a": "groupA", "b": "%RETRY%groupA"}, b"", "No permission for group:groupA"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "RMQ_SYS_TRACE_TOPIC"}, b"", None),
        (
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {"group": "groupA", "offset": "0", "delayLevel": "0"},
            b"",
            "No permission for group:groupA",
        ),
        (RequestCode.PULL_MESSAGE, {"topic": "topicC", "consumerGroup": "groupC"}, b"", None),
        (RequestCode.PULL_MESSAGE, {"topic": "topicC", "consumerGroup": "another"}, b"", None),
        (RequestCode.PULL_MESSAGE, {"topic": "topicA", "consumerGroup": "groupC"}, b"", "topic:topicA"),
        (RequestCode.PULL_MESSAGE, {"topic": "topicC", "consumerGroup": "groupA"}, b"", "group:groupA"),
        (RequestCode.LITE_PULL_MESSAGE, {"topic": "topicA", "consumerGroup": "groupC"}, b"", "topic:topicA"),
        (RequestCode.POP_MESSAGE, {"topic": "topicA", "consumerGroup": "groupC"}, b"", "topic:topicA"),
        # A send to a retry topic needs the permission for that topic's group. The group in the request does not count.
        (RequestCode.SEND_MESSAGE_V2, {"a": "groupC", "b": "%RETRY%groupA"}, b"", "group:groupA"),
        (RequestCode.SEND_MESSAGE_V2, {"a": "groupA", "b": "%RETRY%groupC"}, b"", None),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"a": "p", "b": "c_REPLY_TOPIC"}, b"", None),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"a": "p", "b": "x_REPLY_TOPIC"}, b"", "topic:x_REPLY_TOPIC"),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"a": "p", "b": "other"}, b"", "topic:other"),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%groupC_topicC", "consumerGroup": "groupC"}, b"", None),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%groupC_topicA", "consumerGroup": "groupC"}, b"", "topic:topicA"),
        (RequestCode.BATCH_ACK_MESSAGE, {}, batch_ack("groupC", "topicC"), None),
        (RequestCode.BATCH_ACK_MESSAGE, {}, batch_ack("groupA", "topicC"), "group:groupA"),
        (RequestCode.QUERY_MESSAGE, {"topic": "topicA"}, b"", "topic:topicA"),
        (RequestCode.HEART_BEAT, {}, heartbeat("groupC", "topicC"), None),
        (RequestCode.HEART_BEAT, {}, heartbeat("groupC", "topicA"), "topic:topicA"),
        (RequestCode.HEART_BEAT, {}, heartbeat("groupA", "topicC"), "group:groupA"),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "p"}, b"", None),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "groupA"}, b"", "group:groupA"),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "groupA"}, b"", "group:groupA"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "groupC", "topic": "topicA"}, b"", "topic:topicA"),
        (RequestCode.GET_MAX_OFFSET, {"topic": "topicC"}, b"", None),
        (RequestCode.GET_MAX_OFFSET, {"topic": "topicA"}, b"", "topic:topicA"),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "groupC"}, b"", "No permission for all topics"),
        (RequestCode.GET_BROKER_RUNTIME_INFO, {}, b"", "Need admin permission"),
        (
            RequestCode.UPDATE_BROKER_CONFIG,
            {},
            b"",
            "Need admin permission for Update of Cluster:c, but accessKey=RocketMQ is not",
        ),
        (RequestCode.AUTH_CREATE_USER, {}, b"", "Need admin permission"),
    ],
)
def test_what_requests_need(
    access: PlainAccess, code: int, fields: dict[str, str], body: bytes, refused: str | None
) -> None:
    answer = refusal(access, request(code, fields, body))
    assert answer is None if refused is None else refused in str(answer)
    assert refusal(access, request(code, fields, body, access_key="rocketmq2", secret_key="01234567")) is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("accounts: [", "line 1: invalid YAML"),
        ("accounts:\n  - accessKey: rocketmq\n    secretKey: hushhush\n   bad: x\n", "line 4: invalid YAML"),
        ("accounts: 5", "accounts"),
        ("- a", "object"),
        ("accounts:\n  - accessKey: rocketmq\n", "secretKey"),
        ("accounts:\n  - accessKey: rocket\n    secretKey: hushhush\n", "accessKey rocket"),
        ("accounts:\n  - accessKey: rocketmq\n    secretKey: hushhu\n", "accessKey rocketmq"),
        ("globalWhiteRemoteAddresses:\n  - 10.10.300.*\n", "10.10.300.*"),
        ("accounts:\n  - accessKey: rocketmq\n    secretKey: hushhush\n    topicPerms: [a]\n", "topicPerms: 'a'"),
        ("accounts:\n  - accessKey: rocketmq\n    secretKey: hushhush\n    whiteRemoteAddress: x\n", "whiteRemote"),
        ("\x00", "invalid YAML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name_without_its_secrets(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_plain_acl(text.encode(), "plain_acl.yml")
    assert "plain_acl.yml" in str(caught.value)
    assert named in str(caught.value)
    assert "hush" not in str(caught.value)


def test_changes_are_seen_and_broken_ones_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "plain_acl.yml"
    files = PlainAclFiles(path)
    with pytest.raises(ConfigError, match=r"plain_acl.yml, which does not exist"):
        files.load()
    path.write_bytes(TEXT)
    assert set(files.load().accounts) == {"RocketMQ", "rocketmq2"}
    assert files.changed() is None

    path.write_bytes(TEXT + b"  - accessKey: another\n    secretKey: anotherkey\n")
    acl = files.changed()
    assert acl is not None
    assert "another" in acl.accounts
    assert files.changed() is None

    path.write_text("accounts: [")
    assert files.changed() is None
    assert "the accounts are not reloaded" in caplog.text
    caplog.clear()
    assert files.changed() is None
    assert caplog.text == ""

    os.replace(path, tmp_path / "away.yml")
    assert files.changed() is None
    assert "the accounts are not reloaded" in caplog.text


def test_files_of_the_directory_acl_count_too(tmp_path: Path) -> None:
    (tmp_path / "acl" / "deep").mkdir(parents=True)
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts:\n  - accessKey: rocketmq2\n    secretKey: 99999999\n")
    (tmp_path / "acl" / "deep" / "more.yml").write_bytes(TEXT)
    acl = PlainAclFiles(path).load()
    assert set(acl.accounts) == {"RocketMQ", "rocketmq2"}
    assert acl.accounts["rocketmq2"].signer.sign({}, b"", 479) == Signer("01234567").sign({}, b"", 479)
    assert len(acl.trusted) == 2


def test_who_may_send(access: PlainAccess) -> None:
    caller = Caller(HOST)
    assert not access.may_send(caller, "topicB")
    access.check(caller, request(RequestCode.SEND_MESSAGE_V2, {"b": "topicB"}))
    assert access.may_send(caller, "topicB")
    assert not access.may_send(caller, "topicC")
    assert access.may_send(Caller("10.10.103.7"), "topicC")
    assert access.may_send(Caller("192.168.1.4", "rocketmq2"), "topicC")
    assert not access.is_super(Caller("192.168.1.4", "rocketmq2"))
