"""Every request of the broker, sent by users without permissions and by users with a single permission."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from administration import beat, commit, create_group
from broker_support import Peer, config
from request_of_each_code import Asked, Places, every_request

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.guard import Access, Caller
from gantrymq.auth.permission import Guarded
from gantrymq.auth.plain_access import PlainAccess
from gantrymq.auth.plain_acl import parse_plain_acl
from gantrymq.auth.request_permissions import RULES
from gantrymq.auth.user_access import UserAccess
from gantrymq.auth.user_table import UserTable
from gantrymq.broker.broker import Broker
from gantrymq.broker.consumers.locks import LockRequests
from gantrymq.broker.tables.request_modes import MessageRequestModes
from gantrymq.client.admin.auth import acl_of
from gantrymq.errors import HeaderError, RequestRefused
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.message_id import decode_offset_message_id, encode_offset_message_id
from gantrymq.protocol.properties import decode_properties
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.signatures import SigningHook

USERS = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"administrator","password":"secret12"}',
)
ACCOUNTS = """
accounts:
  - {accessKey: administrator, secretKey: secret12, admin: true}
  - {accessKey: nobody1, secretKey: secret12, defaultTopicPerm: DENY, defaultGroupPerm: DENY}
  - {accessKey: stranger, secretKey: secret12, topicPerms: [others=PUB|SUB], groupPerms: [others=PUB|SUB]}
"""
CODE = RequestCode


class Scene:
    """A broker with access control, and requests for its topic `orders` and its group `readers`."""

    def __init__(self, broker: Broker, remoting: dict[str, RemotingClient], places: Places) -> None:
        self.broker = broker
        self._remoting = remoting
        self.requests = every_request("orders", "readers", places)

    async def peer(self, account: str) -> Peer:
        return Peer(await self._remoting[account].connection(f"127.0.0.1:{self.broker.port}"))

    def state(self) -> tuple[object, ...]:
        """Returns all state that a request could change."""
        broker = self.broker
        locking = next(part for part in broker.features.all if isinstance(part, LockRequests))
        modes = next(part for part in broker.features.all if isinstance(part, MessageRequestModes))
        return (
            encode_json(broker.topics.table),
            encode_json(broker.groups.table),
            b"".join(broker.offsets.in_pieces()),
            broker.store.max_physical_offset,
            broker.store.topics(),
            {group: sorted(members.client_ids()) for group, members in broker.members.consumers.items()},
            {group: len(members) for group, members in broker.members.producers.items()},
            {name: user.info() for name, user in broker.access.users.users.items()},
            dict(broker.access.users.acls),
            str(broker.config),
            len(locking.locks),
            encode_json(modes.table),
        )


@asynccontextmanager
async def scene(directory: Path, auth: AuthConfig) -> AsyncIterator[Scene]:
    settings = config(directory / "store", auth=auth)
    settings.store.enable_lmq = True
    broker = Broker(settings)
    await broker.start()
    accounts = ("administrator", "nobody1", "stranger")
    remoting = {account: RemotingClient(hooks=[SigningHook(account, "secret12")]) for account in accounts}
    try:
        if not auth.acl_enable:
            for name in ("nobody1", "stranger", "eve"):
                broker.access.users.create_user(UserInfo(name, "secret12"))
            rights = acl_of("User:stranger", ["Topic:others", "Group:others"], ["All"], [], "Allow")
            broker.access.users.put_acl(None, rights)
        administrator = Peer(await remoting["administrator"].connection(f"127.0.0.1:{broker.port}"))
        yield Scene(broker, remoting, await prepared(broker, administrator))
    finally:
        for client in remoting.values():
            await client.close()
        await broker.stop()


async def prepared(broker: Broker, administrator: Peer) -> Places:
    sent = await administrator.send("orders", b"secret", properties={"KEYS": "k"})
    half = await administrator.send("orders", b"half", properties={"TRAN_MSG": "true", "PGROUP": "producers"})
    await create_group(administrator, "readers")
    await commit(administrator, 0, group="readers")
    await beat(administrator, "c", "readers")
    half_place = place_of(half)
    broker.topics.create_if_absent("TRANS_CHECK_MAX_TIME_TOPIC", 1)
    await broker.topics.written()
    with broker.store.waiting():
        record = broker.store.read_record(half_place[0])
        broker.features.transactions.check.discard(record, decode_properties(record.properties))
    unit = broker.store.queue("TRANS_CHECK_MAX_TIME_TOPIC", 0).unit(0)
    assert unit is not None
    discarded = unit[0], encode_offset_message_id(broker.appender.store_host, unit[0])
    return Places(place_of(sent), half_place, int(half.ext_fields["queueOffset"]), discarded)


def place_of(sent: RemotingCommand) -> tuple[int, str]:
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    message_id = sent.ext_fields["msgId"]
    return decode_offset_message_id(message_id)[1], message_id


@pytest.fixture(params=["users", "plain_acl"])
async def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    auth = USERS if request.param == "users" else AuthConfig(acl_enable=True, plain_acl_file=file)
    async with scene(tmp_path, auth) as prepared_scene:
        yield prepared_scene


async def test_every_code_has_a_rule_and_a_request(guarded: Scene) -> None:
    served = set(guarded.broker.handlers)
    assert served == set(RULES)
    assert served == set(guarded.requests)


def mutilated(asked: Asked) -> Iterator[Asked]:
    """Yields variants of a request: each field missing, blank or of another resource, and without a body."""
    for name in asked.fields:
        yield asked._replace(fields={each: value for each, value in asked.fields.items() if each != name})
        yield asked._replace(fields=asked.fields | {name: " "})
    for name in ("topic", "b", "consumerGroup", "group", "originTopic"):
        yield asked._replace(fields=asked.fields | {name: "others"} if name in asked.fields else asked.fields)
    yield asked._replace(fields=asked.fields | {"clusterName": "others"})
    if asked.body:
        yield asked._replace(body=b"")
        yield asked._replace(body=b"{}")


async def test_who_may_nothing_is_refused_everything(guarded: Scene) -> None:
    nobody = await guarded.peer("nobody1")
    before = guarded.state()
    for code, asked in guarded.requests.items():
        answer = await nobody.ask(code, fields=dict(asked.fields), body=asked.body)
        assert answer.code == ResponseCode.NO_PERMISSION, (RequestCode(code).name, answer.remark)
        assert not answer.body
        for changed in mutilated(asked):
            answer = await nobody.ask(code, fields=dict(changed.fields), body=changed.body)
            assert answer.code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR), (
                RequestCode(code).name,
                changed,
            )
            assert not answer.body
    assert guarded.state() == before


async def test_who_may_other_things_is_refused_these(guarded: Scene) -> None:
    """A request is refused even if it claims to concern a resource that the user may use."""
    stranger = await guarded.peer("stranger")
    before = guarded.state()
    by_place = (CODE.VIEW_MESSAGE_BY_ID, CODE.END_TRANSACTION, CODE.RESUME_CHECK_HALF_MESSAGE)
    for code, asked in guarded.requests.items():
        requests = [asked, asked._replace(fields=asked.fields | {"clusterName": "others"})]
        if code in by_place:
            requests.append(asked._replace(fields=asked.fields | {"topic": "others"}))
            requests.append(asked._replace(fields={k: v for k, v in asked.fields.items() if k != "topic"}))
        if code == CODE.CONSUMER_SEND_MSG_BACK:
            requests.append(asked._replace(fields=asked.fields | {"group": "others", "originTopic": "others"}))
        if code == CODE.CONSUME_MESSAGE_DIRECTLY:
            requests.append(asked._replace(fields=asked.fields | {"consumerGroup": "others", "topic": "others"}))
        for each in requests:
            answer = await stranger.ask(code, fields=dict(each.fields), body=each.body)
            assert answer.code == ResponseCode.NO_PERMISSION, (RequestCode(code).name, answer.remark)
    assert guarded.state() == before


# -- one permission at a time -----------------------------------------------------------------------------------

SENDS = {
    CODE.SEND_MESSAGE,
    CODE.SEND_MESSAGE_V2,
    CODE.SEND_BATCH_MESSAGE,
    CODE.SEND_REPLY_MESSAGE,
    CODE.SEND_REPLY_MESSAGE_V2,
    CODE.RECALL_MESSAGE,
    CODE.END_TRANSACTION,
    CODE.END_HALF_MESSAGES,
    CODE.GET_WRITER_QUEUES,
}
READS_MESSAGES = {CODE.QUERY_MESSAGE, CODE.VIEW_MESSAGE_BY_ID}
IN_GROUP = {CODE.UNREGISTER_CLIENT, CODE.GET_CONSUMER_LIST_BY_GROUP}
CONSUMES = {
    CODE.HEART_BEAT,
    CODE.CHECK_CLIENT_CONFIG,
    CODE.LOCK_BATCH_MQ,
    CODE.UNLOCK_BATCH_MQ,
    CODE.PULL_MESSAGE,
    CODE.LITE_PULL_MESSAGE,
    CODE.QUERY_CONSUMER_OFFSET,
    CODE.UPDATE_CONSUMER_OFFSET,
    CODE.CONSUMER_SEND_MSG_BACK,
    CODE.QUERY_ASSIGNMENT,
    CODE.POP_MESSAGE,
    CODE.POP_LITE_MESSAGE,
    CODE.LITE_SUBSCRIPTION_CTL,
    CODE.PEEK_MESSAGE,
    CODE.NOTIFICATION,
    CODE.ACK_MESSAGE,
    CODE.BATCH_ACK_MESSAGE,
    CODE.CHANGE_MESSAGE_INVISIBLETIME,
    CODE.CONSUME_MESSAGE_DIRECTLY,
}
LOOKS_AT_TOPIC = {
    CODE.SEARCH_OFFSET_BY_TIMESTAMP,
    CODE.GET_MAX_OFFSET,
    CODE.GET_MIN_OFFSET,
    CODE.GET_EARLIEST_MSG_STORETIME,
    CODE.GET_TOPIC_CONFIG,
    CODE.GET_TOPIC_STATS_INFO,
    CODE.QUERY_TOPIC_CONSUME_BY_WHO,
    CODE.GET_PARENT_TOPIC_INFO,
    CODE.GET_LITE_TOPIC_INFO,
}
LOOKS_AT_GROUP = {
    CODE.GET_SUBSCRIPTIONGROUP_CONFIG,
    CODE.GET_CONSUMER_CONNECTION_LIST,
    CODE.GET_CONSUMER_RUNNING_INFO,
    CODE.QUERY_TOPICS_BY_CONSUMER,
    CODE.GET_LITE_GROUP_INFO,
}
LOOKS_AT_BOTH = {
    CODE.POLLING_INFO,
    CODE.GET_LITE_CLIENT_INFO,
    CODE.QUERY_CONSUME_QUEUE,
    CODE.QUERY_SUBSCRIPTION_BY_CONSUMER,
    CODE.QUERY_CONSUME_TIME_SPAN,
    CODE.GET_CONSUME_STATS,
    CODE.QUERY_CORRECTION_OFFSET,
    CODE.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
}
LOOKS_AT_BROKER = {
    CODE.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    CODE.GET_BROKER_CONFIG,
    CODE.GET_BROKER_RUNTIME_INFO,
    CODE.VIEW_BROKER_STATS_DATA,
    CODE.GET_BROKER_CONSUME_STATS,
    CODE.GET_BROKER_LITE_INFO,
    CODE.GET_PRODUCER_CONNECTION_LIST,
    CODE.GET_ALL_PRODUCER_INFO,
    CODE.GET_ALL_CONSUMER_OFFSET,
    CODE.GET_ALL_DELAY_OFFSET,
    CODE.GET_ALL_MESSAGE_REQUEST_MODE,
    CODE.GET_TIMER_CHECK_POINT,
    CODE.GET_TIMER_METRICS,
    CODE.GET_BROKER_HA_STATUS,
    CODE.GET_BROKER_EPOCH_CACHE,
    CODE.AUTH_GET_USER,
    CODE.AUTH_LIST_USER,
    CODE.AUTH_GET_ACL,
    CODE.AUTH_LIST_ACL,
}
CHANGES_BROKER = {
    CODE.EXCHANGE_BROKER_HA_INFO,
    CODE.NOTIFY_BROKER_ROLE_CHANGED,
    CODE.NOTIFY_MIN_BROKER_ID_CHANGE,
    CODE.RESET_MASTER_FLUSH_OFFSET,
    CODE.UPDATE_BROKER_CONFIG,
    CODE.CLEAN_EXPIRED_CONSUMEQUEUE,
    CODE.CLEAN_UNUSED_TOPIC,
    CODE.DELETE_EXPIRED_COMMITLOG,
    CODE.AUTH_CREATE_USER,
    CODE.AUTH_UPDATE_USER,
    CODE.AUTH_DELETE_USER,
    CODE.AUTH_CREATE_ACL,
    CODE.AUTH_UPDATE_ACL,
    CODE.AUTH_DELETE_ACL,
}
CREATES_TOPIC = {CODE.UPDATE_AND_CREATE_TOPIC, CODE.UPDATE_AND_CREATE_TOPIC_LIST}
CREATES_GROUP = {CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST}
UPDATES_BOTH = {
    CODE.UPDATE_CONSUMER_OFFSET,
    CODE.INVOKE_BROKER_TO_RESET_OFFSET,
    CODE.UPDATE_AND_GET_GROUP_FORBIDDEN,
    CODE.SET_MESSAGE_REQUEST_MODE,
}
OFFSETS_AND_QUEUES = {CODE.QUERY_CONSUMER_OFFSET, CODE.QUERY_ASSIGNMENT}

TOPIC, GROUP, CLUSTER = "Topic:orders", "Group:readers", "Cluster:DefaultCluster"
GETS_TOPIC = READS_MESSAGES | LOOKS_AT_TOPIC
GETS_GROUP = LOOKS_AT_GROUP | {CODE.GET_CONSUMER_LIST_BY_GROUP}
BY_RIGHT: list[tuple[list[str], set[RequestCode]]] = [
    ([f"{TOPIC} Pub"], SENDS),
    ([f"{TOPIC} Sub"], READS_MESSAGES),
    ([f"{TOPIC} Create"], CREATES_TOPIC),
    ([f"{TOPIC} Update"], {CODE.RESUME_CHECK_HALF_MESSAGE}),
    ([f"{TOPIC} Delete"], {CODE.DELETE_TOPIC_IN_BROKER}),
    ([f"{TOPIC} Get"], GETS_TOPIC),
    ([f"{TOPIC} List"], set()),
    ([f"{GROUP} Pub"], set()),
    ([f"{GROUP} Sub"], IN_GROUP),
    ([f"{GROUP} Create"], CREATES_GROUP),
    ([f"{GROUP} Update"], {CODE.TRIGGER_LITE_DISPATCH}),
    ([f"{GROUP} Delete"], {CODE.DELETE_SUBSCRIPTIONGROUP}),
    ([f"{GROUP} Get"], GETS_GROUP),
    ([f"{GROUP} List"], set()),
    ([f"{CLUSTER} Pub,Sub,Create,Delete,List"], set()),
    ([f"{CLUSTER} Get"], LOOKS_AT_BROKER),
    ([f"{CLUSTER} Update"], CHANGES_BROKER),
    (["Cluster:others All"], set()),
    (["Topic:* List"], {CODE.GET_ALL_TOPIC_CONFIG}),
    (["Topic:* Get"], GETS_TOPIC | {CODE.GET_ALL_TOPIC_CONFIG}),
    (["Topic:* Get", "Topic:hidden Get Deny"], GETS_TOPIC),
    (["Group:* List"], {CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG}),
    # Requests that need one permission on each of the two.
    ([f"{TOPIC} Sub", f"{GROUP} Sub"], READS_MESSAGES | IN_GROUP | CONSUMES),
    ([f"{TOPIC} Get", f"{GROUP} Get"], GETS_TOPIC | GETS_GROUP | LOOKS_AT_BOTH | OFFSETS_AND_QUEUES),
    (
        [f"{TOPIC} Update", f"{GROUP} Update"],
        {CODE.RESUME_CHECK_HALF_MESSAGE, CODE.TRIGGER_LITE_DISPATCH} | UPDATES_BOTH,
    ),
    (
        [f"{TOPIC} Update", f"{GROUP} Update,Get"],
        {CODE.RESUME_CHECK_HALF_MESSAGE, CODE.CLONE_GROUP_OFFSET, CODE.TRIGGER_LITE_DISPATCH}
        | UPDATES_BOTH
        | GETS_GROUP,
    ),
]


def allowed(access: Access, requests: dict[int, Asked]) -> set[RequestCode]:
    """Returns the codes of the requests that user `alice12` may send."""
    codes = set()
    for code, asked in requests.items():
        request = RemotingCommand.request(code, fields=dict(asked.fields), body=asked.body)
        SigningHook("alice12", "secret12").before_request("", request)
        try:
            access.check(Caller("127.0.0.1"), request)
        except (RequestRefused, HeaderError):
            continue
        codes.add(RequestCode(code))
    return codes


async def test_each_right_is_for_what_it_is_for(tmp_path: Path) -> None:
    async with scene(tmp_path, USERS) as prepared_scene:
        broker = Guarded("DefaultCluster", prepared_scene.broker.access.record_at)
        for rights, expected in BY_RIGHT:
            table = UserTable()
            table.create_user(UserInfo("alice12", "secret12"))
            for right in rights:
                resource, actions, *decision = right.split(" ")
                acl = acl_of("User:alice12", [resource], actions.split(","), [], *(decision or ["Allow"]))
                table.put_acl(None, acl)
            access = UserAccess(AuthConfig(authorization_enabled=True), broker, table)
            assert allowed(access, prepared_scene.requests) == expected, rights


def test_the_rights_above_are_all_there_are() -> None:
    everything = set().union(*(codes for _, codes in BY_RIGHT))
    assert everything == set(RULES)


PLAIN_BY_RIGHT: list[tuple[str, set[RequestCode]]] = [
    ("topicPerms: [orders=PUB]", SENDS | LOOKS_AT_TOPIC),
    ("topicPerms: [orders=SUB]", READS_MESSAGES | LOOKS_AT_TOPIC),
    ("topicPerms: [orders=DENY], defaultTopicPerm: PUB|SUB", set()),
    ("groupPerms: [readers=PUB]", set()),
    ("groupPerms: [readers=SUB]", IN_GROUP | LOOKS_AT_GROUP),
    ("groupPerms: [readers=DENY], defaultGroupPerm: PUB|SUB", set()),
    (
        "topicPerms: [orders=SUB], groupPerms: [readers=SUB]",
        READS_MESSAGES | LOOKS_AT_TOPIC | IN_GROUP | LOOKS_AT_GROUP | LOOKS_AT_BOTH | CONSUMES,
    ),
    ("defaultTopicPerm: PUB", SENDS | LOOKS_AT_TOPIC | {CODE.GET_ALL_TOPIC_CONFIG}),
    ("defaultTopicPerm: PUB, topicPerms: [hidden=DENY]", SENDS | LOOKS_AT_TOPIC),
    ("defaultGroupPerm: SUB", IN_GROUP | LOOKS_AT_GROUP | {CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG}),
    ("admin: true", {RequestCode(code) for code in RULES}),
]


async def test_each_permission_of_plain_acl_is_for_what_it_is_for(tmp_path: Path) -> None:
    async with scene(tmp_path, USERS) as prepared_scene:
        broker = Guarded("DefaultCluster", prepared_scene.broker.access.record_at)
        for permission, expected in PLAIN_BY_RIGHT:
            text = f"accounts:\n  - {{accessKey: alice12, secretKey: secret12, {permission}}}\n"
            access = PlainAccess(parse_plain_acl(text.encode(), "plain_acl.yml"), broker)
            assert allowed(access, prepared_scene.requests) == expected, permission


async def test_a_field_that_is_missing_takes_more(tmp_path: Path) -> None:
    """A missing field means all topics or groups, so the request needs more permissions.

    Exceptions: the request names a message position, or it does less without the field.
    """
    by_place = {
        CODE.VIEW_MESSAGE_BY_ID,
        CODE.END_TRANSACTION,
        CODE.RESUME_CHECK_HALF_MESSAGE,
        CODE.CONSUME_MESSAGE_DIRECTLY,
    }
    less = {CODE.UNREGISTER_CLIENT, CODE.QUERY_CONSUME_QUEUE}
    async with scene(tmp_path, USERS) as prepared_scene:
        broker = Guarded("DefaultCluster", prepared_scene.broker.access.record_at)
        table = UserTable()
        table.create_user(UserInfo("alice12", "secret12"))
        table.put_acl(None, acl_of("User:alice12", [TOPIC, GROUP], ["All"], [], "Allow"))
        access = UserAccess(AuthConfig(authorization_enabled=True), broker, table)
        mine = allowed(access, prepared_scene.requests)
        of_all = {CODE.GET_ALL_TOPIC_CONFIG, CODE.GET_ALL_SUBSCRIPTIONGROUP_CONFIG}
        assert mine == set(RULES) - LOOKS_AT_BROKER - CHANGES_BROKER - of_all
        for name in ("topic", "b", "group", "consumerGroup", "groupName", "srcGroup", "destGroup", "compareGroup"):
            requests = {
                code: prepared_scene.requests[code] for code in mine if name in prepared_scene.requests[code].fields
            }
            assert requests
            for value in ({}, {name: ""}, {name: " "}):
                changed = {
                    code: asked._replace(fields={k: v for k, v in asked.fields.items() if k != name} | value)
                    for code, asked in requests.items()
                }
                passed = allowed(access, changed)
                assert passed <= by_place | less, (name, value)
                if name != "topic":
                    assert not passed & by_place, (name, value)
