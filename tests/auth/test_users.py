"""Tests of the table of users and policies, and of the request checks that use it."""

from __future__ import annotations

import itertools

import pytest

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.guard import Caller
from gantrymq.auth.permission import Guarded
from gantrymq.auth.user_access import UserAccess
from gantrymq.auth.user_table import UsersFile, UserTable
from gantrymq.auth.users import UserType
from gantrymq.client.admin.auth import acl_of
from gantrymq.errors import ConfigError, RequestRefused
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.bodies.pop import BatchAck, BatchAckBody
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import Record, decode_record, encode_host, encode_record
from gantrymq.remoting.signatures import SigningHook

HOST = "127.0.0.1"
#: Records in the commit log of the broker under test.
RECORDS = [
    ("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "T"}),
    ("U", {"REAL_TOPIC": "x"}),
    ("%RETRY%g_U", {}),
]


def record_at(physical_offset: int) -> Record | None:
    if physical_offset >= len(RECORDS):
        return None
    topic, properties = RECORDS[physical_offset]
    host = encode_host("127.0.0.1", 1)
    return decode_record(
        encode_record(0, 0, 0, 0, 0, 0, host, 0, host, 0, 0, b"x", topic.encode(), encode_properties(properties))
    )


BROKER = Guarded("c", record_at)
BOTH = AuthConfig(authentication_enabled=True, authorization_enabled=True)
INIT_USER = '{"username":"root","password":"rootpass"}'


@pytest.fixture
def table() -> UserTable:
    table = UserTable()
    table.load(AuthConfig(init_authentication_user=INIT_USER))
    table.create_user(UserInfo("alice", "secret12"))
    return table


def allow(table: UserTable, resource: str, actions: str, *, decision: str = "Allow", ips: str = "") -> None:
    source_ips = ips.split(",") if ips else []
    table.put_acl(None, acl_of("User:alice", [resource], actions.split(","), source_ips, decision))


#: A connection accepts each `opaque` only once.
_opaque = itertools.count()


def request(
    code: int, fields: dict[str, str] | None = None, body: bytes = b"", user: str = "alice", password: str = "secret12"
) -> RemotingCommand:
    command = RemotingCommand.request(code, fields=fields, body=body)
    command.opaque = next(_opaque)
    SigningHook(user, password).before_request("", command)
    return command


def refusal(access: UserAccess, command: RemotingCommand, host: str = HOST) -> str | None:
    try:
        access.check(Caller(host), command)
    except RequestRefused as e:
        return str(e)
    return None


# -- table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 98, 99, 250])
def test_users_and_policies_outlive_the_broker(table: UserTable, more: int) -> None:
    for n in range(more):
        table.create_user(UserInfo(f"user-{n}", "secret12"))
        table.put_acl(None, acl_of(f"User:user-{n}", ["Topic:a"], ["Pub"], [], "Allow"))
    allow(table, "Topic:orders*", "Pub,Sub", ips="127.0.0.0/8")
    again = UserTable()
    content = decode_json(b"".join(table.encode()), UsersFile)
    again.load(AuthConfig(init_authentication_user='{"username":"root","password":"another"}'), content)
    assert again.users == table.users
    assert again.users["root"].user_type is UserType.SUPER
    assert again.users["root"].password == "rootpass"
    assert again.acls == table.acls


def test_life_of_a_user(table: UserTable) -> None:
    table.update_user(UserInfo("alice", user_status="disable"))
    assert table.users["alice"].info() == UserInfo("alice", "secret12", "Normal", "disable")
    table.update_user(UserInfo("alice", "changed1", "super", "ENABLE"))
    assert table.users["alice"].info() == UserInfo("alice", "changed1", "Super", "enable")
    assert "changed1" not in repr(table.users["alice"])
    assert "changed1" not in repr(table.users["alice"].info())
    allow(table, "Topic:a", "Pub")
    table.delete_user("alice")
    table.delete_user("alice")
    assert "alice" not in table.users
    assert "alice" not in table.acls


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (UserInfo("alice", "x"), "The user is existed"),
        (UserInfo("bob"), "password can not be blank"),
        (UserInfo(" ", "x"), "username can not be blank"),
        (UserInfo("bob", "x", "Boss"), "userType 'Boss'"),
        (UserInfo("bob", "x", None, "asleep"), "userStatus 'asleep'"),
    ],
)
def test_users_that_are_refused(table: UserTable, info: UserInfo, why: str) -> None:
    with pytest.raises(RequestRefused, match=why):
        table.create_user(info)
    assert set(table.users) == {"root", "alice"}


def test_policies_of_nobody_are_refused(table: UserTable) -> None:
    acl = acl_of("User:bob", ["Topic:a"], ["Pub"], [], "Allow")
    with pytest.raises(RequestRefused, match="subject of User:bob is not exist"):
        table.put_acl(None, acl)
    with pytest.raises(RequestRefused, match="User:NAME"):
        table.put_acl("Role:bob", AclInfo(policies=acl.policies))
    with pytest.raises(RequestRefused, match="subject is not exist"):
        table.acl_info("User:bob")
    with pytest.raises(RequestRefused, match="acl is not exist"):
        table.delete_acl("User:alice", None, None)
    with pytest.raises(RequestRefused, match="user is not exist"):
        table.update_user(UserInfo("bob", "x"))


def test_policies_are_taken_away_one_by_one_and_together(table: UserTable) -> None:
    for name in ("a", "b", "c"):
        allow(table, f"Topic:{name}", "Pub")
    table.delete_acl("User:alice", None, "Topic:b")
    assert [info.policies for info in table.list_acls("", "b")] == []
    assert len(table.list_acls("ali", "Topic:a")[0].policies[0].entries) == 1
    assert len(table.list_acls("ali", "User:")[0].policies[0].entries) == 2
    assert table.list_acls("bob", "") == []
    table.delete_acl("User:alice", None, "Topic:a")
    table.delete_acl("User:alice", "Custom", "Topic:c")
    assert table.acls == {}
    allow(table, "Topic:a", "Pub")
    table.delete_acl("User:alice", None, None)
    assert table.acl_info("User:alice") is None


@pytest.mark.parametrize("text", ["root", "{}", '{"username":"root"}', '{"username":" ","password":"x"}'])
def test_a_configured_user_that_is_none_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(ConfigError, match="initAuthenticationUser"):
        UserTable().load(AuthConfig(init_authentication_user=text))
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials"):
        UserTable().load(AuthConfig(inner_client_authentication_credentials=text))


def test_white_lists_and_both_ways_at_once_are_checked() -> None:
    with pytest.raises(ConfigError, match="authenticationWhitelist=10,x"):
        AuthConfig(authentication_whitelist="10,x")
    with pytest.raises(ConfigError, match="one of the two"):
        AuthConfig(acl_enable=True, authentication_enabled=True)


# -- authentication ---------------------------------------------------------------------------------------------


def test_authentication(table: UserTable) -> None:
    access = UserAccess(AuthConfig(authentication_enabled=True, authentication_whitelist="105, 34"), BROKER, table)
    assert refusal(access, request(RequestCode.GET_MAX_OFFSET)) is None
    assert refusal(access, RemotingCommand.request(RequestCode.HEART_BEAT)) is None
    assert refusal(access, RemotingCommand.request(RequestCode.GET_MAX_OFFSET)) == "username cannot be null."
    assert refusal(access, request(RequestCode.GET_MAX_OFFSET, user="bob")) == "User:bob is not found."
    wrong = request(RequestCode.GET_MAX_OFFSET, password="secret13")
    assert refusal(access, wrong) == "check signature failed. User:alice"
    table.update_user(UserInfo("alice", user_status="disable"))
    assert refusal(access, request(RequestCode.GET_MAX_OFFSET)) == "User:alice is disabled."


# -- permissions ------------------------------------------------------------------------------------------------


def test_authorization_follows_changes_at_once(table: UserTable) -> None:
    access = UserAccess(BOTH, BROKER, table)
    send = request(RequestCode.SEND_MESSAGE_V2, {"a": "p", "b": "orders"})
    assert (
        refusal(access, send)
        == "User:alice has no permission to access Topic:orders from 127.0.0.1, no matched policies. It needs Pub"
    )
    allow(table, "Topic:or*", "Pub", ips="127.0.0.1")
    assert refusal(access, send) is None
    assert "from 10.0.0.1, no matched policies" in str(refusal(access, send, "10.0.0.1"))
    allow(table, "Topic:orders", "Pub", decision="Deny")
    assert "the decision is deny" in str(refusal(access, send))
    table.update_user(UserInfo("alice", user_type="Super"))
    assert refusal(access, send) is None
    table.delete_user("alice")
    assert refusal(access, send) == "User:alice is not found."


def test_without_authentication_a_name_is_enough(table: UserTable) -> None:
    access = UserAccess(AuthConfig(authorization_enabled=True, authorization_whitelist="11"), BROKER, table)
    allow(table, "Topic:orders", "Pub")
    send = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields={"b": "orders"})
    assert refusal(access, send) == "Authorization failed: no user is named."
    send.ext_fields["AccessKey"] = "alice"
    assert refusal(access, send) is None
    send.ext_fields["AccessKey"] = "bob"
    assert refusal(access, send) == "User:bob not found."
    assert refusal(access, RemotingCommand.request(RequestCode.PULL_MESSAGE, fields={"topic": "x"})) is None


def heartbeat(group: str, topic: str) -> bytes:
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData(topic), SubscriptionData(f"%RETRY%{group}")])
    return encode_json(HeartbeatData("client", [], [consumer]))


def queues(group: str, topic: str) -> bytes:
    queue = {"topic": topic, "brokerName": "b", "queueId": 0}
    return encode_json({"consumerGroup": group, "clientId": "c", "mqSet": [queue]})


END = {"producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8", "msgId": "K"}
SENT_BACK = {"group": "g", "delayLevel": "0", "originTopic": "x"}


@pytest.mark.parametrize(
    ("code", "fields", "body", "needed"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "T", "group": "p"}, b"", ["Topic:T Pub"]),
        (RequestCode.SEND_MESSAGE, {"topic": "%RETRY%g", "group": "g"}, b"", ["Group:g Sub"]),
        (RequestCode.SEND_BATCH_MESSAGE, {"a": "p", "b": "T"}, b"", ["Topic:T Pub"]),
        (RequestCode.SEND_MESSAGE_V2, {"b": "%RETRY%g"}, b"", ["Group:g Sub"]),
        (RequestCode.RECALL_MESSAGE, {"topic": "T"}, b"", ["Topic:T Pub"]),
        (RequestCode.END_TRANSACTION, END | {"topic": "x"}, b"", ["Topic:T Pub"]),
        (RequestCode.END_TRANSACTION, END, b"", ["Topic:T Pub"]),
        (RequestCode.CONSUMER_SEND_MSG_BACK, SENT_BACK | {"offset": "1"}, b"", ["Topic:U Sub", "Group:g Sub"]),
        (RequestCode.CONSUMER_SEND_MSG_BACK, SENT_BACK | {"offset": "2"}, b"", ["Topic:U Sub", "Group:g Sub"]),
        (RequestCode.CONSUMER_SEND_MSG_BACK, SENT_BACK | {"offset": "3"}, b"", ["Group:g Sub"]),
        (
            RequestCode.CONSUMER_SEND_MSG_BACK,
            SENT_BACK | {"offset": "0"},
            b"",
            ["Topic:RMQ_SYS_TRANS_HALF_TOPIC Sub", "Group:g Sub"],
        ),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}, b"", ["Topic:T Sub or Get"]),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "1", "topic": "x"}, b"", ["Topic:U Sub or Get"]),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "2"}, b"", ["Group:g_U Sub or Get"]),
        (RequestCode.PULL_MESSAGE, {"topic": "T", "consumerGroup": "g"}, b"", ["Topic:T Sub", "Group:g Sub"]),
        (RequestCode.PULL_MESSAGE, {"topic": "%RETRY%g", "consumerGroup": "g"}, b"", ["Group:g Sub"]),
        (RequestCode.PULL_MESSAGE, {"topic": "%RETRY%h", "consumerGroup": "g"}, b"", ["Group:h Sub", "Group:g Sub"]),
        (RequestCode.LITE_PULL_MESSAGE, {"topic": "T", "consumerGroup": "g"}, b"", ["Topic:T Sub", "Group:g Sub"]),
        (RequestCode.POP_MESSAGE, {"topic": "T", "consumerGroup": "g"}, b"", ["Topic:T Sub", "Group:g Sub"]),
        (
            RequestCode.BATCH_ACK_MESSAGE,
            {},
            encode_json(BatchAckBody("b", [BatchAck("g", "T", "0", 0, 0, 0, 0, 0)])),
            ["Topic:T Sub", "Group:g Sub"],
        ),
        (RequestCode.QUERY_MESSAGE, {"topic": "T"}, b"", ["Topic:T Sub or Get"]),
        (RequestCode.HEART_BEAT, {}, heartbeat("g", "T"), ["Topic:T Sub", "Group:g Sub"]),
        (RequestCode.UNREGISTER_CLIENT, {"consumerGroup": "g"}, b"", ["Group:g Sub"]),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, b"", ["Group:g Sub or Get"]),
        (
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"topic": "T", "consumerGroup": "g"},
            b"",
            ["Topic:T Sub or Update", "Group:g Sub or Update"],
        ),
        (
            RequestCode.QUERY_CONSUMER_OFFSET,
            {"topic": "T", "consumerGroup": "g"},
            b"",
            ["Topic:T Sub or Get", "Group:g Sub or Get"],
        ),
        (RequestCode.LOCK_BATCH_MQ, {}, queues("g", "T"), ["Topic:T Sub", "Group:g Sub"]),
        (RequestCode.UNLOCK_BATCH_MQ, {}, queues("g", "%RETRY%g"), ["Group:g Sub"]),
        (
            RequestCode.GET_CONSUME_STATS,
            {"consumerGroup": "g", "topicList": "T;U"},
            b"",
            ["Topic:T Get", "Topic:U Get", "Group:g Get"],
        ),
        (
            RequestCode.QUERY_CORRECTION_OFFSET,
            {"filterGroups": "g,h", "compareGroup": "i", "topic": "T"},
            b"",
            ["Topic:T Get", "Group:g Get", "Group:h Get", "Group:i Get"],
        ),
        (RequestCode.GET_MAX_OFFSET, {"topic": "%RETRY%g"}, b"", ["Group:g Get"]),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}, b"", ["Topic:T Create"]),
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            {},
            b'{"topicConfigList":[{"topicName":"T"},{"topicName":"U"}]}',
            ["Topic:T Create", "Topic:U Create"],
        ),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}', ["Group:g Create"]),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            {},
            b'{"groupConfigList":[{"groupName":"g"}]}',
            ["Group:g Create"],
        ),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, b"", ["Topic:T Delete"]),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, b"", ["Group:g Delete"]),
        (
            RequestCode.CLONE_GROUP_OFFSET,
            {"srcGroup": "h", "destGroup": "g", "topic": "T"},
            b"",
            ["Topic:T Update", "Group:g Update", "Group:h Get"],
        ),
        (RequestCode.AUTH_CREATE_USER, {"username": "x"}, b"", ["Cluster:c Update"]),
        (RequestCode.AUTH_LIST_ACL, {}, b"", ["Cluster:c Get"]),
        (RequestCode.UPDATE_BROKER_CONFIG, {}, b"", ["Cluster:c Update"]),
        (RequestCode.UPDATE_BROKER_CONFIG, {"clusterName": "another"}, b"", ["Cluster:c Update"]),
        (RequestCode.GET_BROKER_RUNTIME_INFO, {}, b"", ["Cluster:c Get"]),
    ],
)
def test_what_requests_need(
    table: UserTable, code: int, fields: dict[str, str], body: bytes, needed: list[str]
) -> None:
    access = UserAccess(BOTH, BROKER, table)
    command = request(code, fields, body)
    met: list[str] = []
    while (refused := refusal(access, command)) is not None:
        resource = refused.partition(" access ")[2].partition(" from ")[0]
        actions = refused.partition("It needs ")[2]
        assert f"{resource} {actions}" not in met
        met.append(f"{resource} {actions}")
        allow(table, resource, actions.split(" or ")[-1])
    assert sorted(met) == sorted(needed)


def test_what_names_nothing_takes_some_right(table: UserTable) -> None:
    access = UserAccess(BOTH, BROKER, table)
    leave = request(RequestCode.UNREGISTER_CLIENT, {"clientID": "x", "producerGroup": "p"})
    nowhere = request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "7"})
    for command in (leave, nowhere):
        assert "to access * from 127.0.0.1, no matched policies. It needs Any" in str(refusal(access, command))
    allow(table, "Topic:T", "Pub", ips="10.0.0.0/8")
    allow(table, "Topic:U", "Pub", decision="Deny")
    assert "It needs Any" in str(refusal(access, leave))
    allow(table, "Topic:V", "Pub")
    assert refusal(access, leave) is None
    # This offset has no record, so the request needs no permission.
    assert refusal(access, nowhere) is None


def test_a_code_without_a_rule_is_for_super_users(table: UserTable) -> None:
    access = UserAccess(BOTH, BROKER, table)
    allow(table, "*", "All")
    assert "request code 12345 has no rule" in str(refusal(access, request(12345)))
    assert refusal(access, request(12345, user="root", password="rootpass")) is None


def test_who_may_send(table: UserTable) -> None:
    """`may_send` and `is_super` apply to the user of the connection's last signed request."""
    access = UserAccess(BOTH, BROKER, table)
    caller = Caller(HOST)
    assert not access.may_send(caller, "orders")
    allow(table, "Topic:orders", "Pub")
    access.check(caller, request(RequestCode.SEND_MESSAGE_V2, {"b": "orders"}))
    assert access.may_send(caller, "orders")
    assert not access.may_send(caller, "others")
    assert not access.is_super(caller)
    with pytest.raises(RequestRefused):
        access.check(caller, request(RequestCode.SEND_MESSAGE_V2, {"b": "orders"}, user="root", password="guessed"))
    assert not access.is_super(caller)
    table.update_user(UserInfo("alice", user_status="disable"))
    assert not access.may_send(caller, "orders")
    access.check(caller, request(RequestCode.SEND_MESSAGE_V2, {"b": "x"}, user="root", password="rootpass"))
    assert access.may_send(caller, "others")
    assert access.is_super(caller)


def test_without_authorization_every_user_may_send(table: UserTable) -> None:
    access = UserAccess(AuthConfig(authentication_enabled=True, authentication_whitelist="34"), BROKER, table)
    caller = Caller(HOST)
    access.check(caller, RemotingCommand.request(RequestCode.HEART_BEAT, fields={"AccessKey": "root"}))
    assert not access.may_send(caller, "orders")
    access.check(caller, request(RequestCode.GET_MAX_OFFSET))
    access.check(caller, RemotingCommand.request(RequestCode.HEART_BEAT, fields={"AccessKey": "root"}))
    assert access.may_send(caller, "orders")
    assert not access.is_super(caller)
