"""Access control of the broker, with a plain ACL file and with users and policies."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from broker_support import Peer, config
from transaction_support import Producer

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.broker import Broker
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.credentials import Credentials, rpc_hooks
from gantrymq.errors import BrokerError, ConfigError, RefusalReason
from gantrymq.protocol.acl_signature import ACCESS_KEY, SIGNATURE, Signer
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.private_fields import REASON_FIELD
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply, RpcHook
from gantrymq.remoting.signatures import SigningHook

PLAIN_ACL = """
accounts:
  - accessKey: producer1
    secretKey: secret-of-1
    topicPerms: [orders=PUB]
  - accessKey: operator
    secretKey: secret-of-0
    admin: true
"""
ROOT = Credentials("root", "rootpass")
USERS = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"root","password":"rootpass"}',
    inner_client_authentication_credentials='{"accessKey":"inner","secretKey":"innerpass"}',
)

StartBroker = Callable[[AuthConfig], Awaitable[Broker]]


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def start(tmp_path: Path, stack: AsyncExitStack) -> StartBroker:
    async def start(auth: AuthConfig) -> Broker:
        broker = Broker(config(tmp_path / "store", auth=auth))
        await broker.start()
        stack.push_async_callback(broker.stop)
        return broker

    return start


@pytest.fixture(params=[SerializeType.JSON, SerializeType.ROCKETMQ], ids=["json", "binary"])
def connect(request: pytest.FixtureRequest, stack: AsyncExitStack) -> Callable[..., Awaitable[Peer]]:
    async def connect(broker: Broker, *hooks: RpcHook) -> Peer:
        client = RemotingClient(hooks=hooks)
        stack.push_async_callback(client.close)
        return Peer(await client.connection(f"127.0.0.1:{broker.port}"), request.param)

    return connect


async def test_plain_acl(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN_ACL)
    broker = await start(AuthConfig(acl_enable=True, plain_acl_file=file))

    producer = await connect(broker, SigningHook("producer1", "secret-of-1"))
    for i in range(3):
        assert (await producer.send("orders", b"body %d" % i)).code == 0
    denied = await producer.send("others", b"body")
    assert denied.code == ResponseCode.NO_PERMISSION
    assert denied.remark == "No default permission for topic:others: accessKey=producer1 needs PUB, has DENY"
    pull = await producer.pull("orders")
    assert pull.remark == "No permission for topic:orders: accessKey=producer1 needs SUB, has PUB"
    config_change = await producer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
    assert "Need admin permission" in str(config_change.remark)

    stranger = await connect(broker)
    assert (await stranger.send("orders", b"body")).remark == "No accessKey is configured"
    liar = await connect(broker, SigningHook("producer1", "guessed"))
    assert (await liar.send("orders", b"body")).remark == "Check signature failed for accessKey=producer1"

    operator = await connect(broker, SigningHook("operator", "secret-of-0"))
    assert (await operator.pull("orders")).code == 0

    file.write_text(PLAIN_ACL.replace("[orders=PUB]", "[orders=PUB|SUB]\n    groupPerms: [consumers=SUB]"))
    broker.access.reload()
    assert (await producer.pull("orders")).code == 0
    file.write_text("accounts: [")
    broker.access.reload()
    assert (await producer.pull("orders")).code == 0
    assert "secret-of" not in caplog.text


class JavaHook:
    """Signs requests as Java clients and older GantryMQ clients do."""

    def before_request(self, address: str, request: RemotingCommand) -> None:
        fields = request.ext_fields
        fields[ACCESS_KEY] = "root"
        fields[SIGNATURE] = Signer("rootpass").sign(fields, request.body, request.version)

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None: ...


async def test_a_recorded_request_is_good_for_itself_alone(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]]
) -> None:
    broker = await start(USERS)
    root = await connect(broker, *rpc_hooks(ROOT))
    assert (await root.send("orders", b"body")).code == 0
    recorded = RemotingCommand.request(RequestCode.GET_TOPIC_CONFIG, fields={"topic": "orders"})
    rpc_hooks(ROOT)[0].before_request("", recorded)
    fields = dict(recorded.ext_fields)
    attacker = await connect(broker)
    as_another = await attacker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields=fields)
    assert as_another.code == ResponseCode.NO_PERMISSION
    assert broker.topics.get("orders") is not None
    assert (await attacker.ask(RequestCode.GET_TOPIC_CONFIG, fields=fields)).code == 0
    again = await attacker.ask(RequestCode.GET_TOPIC_CONFIG, fields=fields)
    assert (again.code, "has come before" in (again.remark or "")) == (ResponseCode.NO_PERMISSION, True)


@pytest.mark.parametrize("is_required", [False, True])
async def test_signatures_of_older_clients_unless_the_new_form_is_required(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]], is_required: bool
) -> None:
    broker = await start(replace(USERS, bound_signature_required=is_required))
    assert (await (await connect(broker, *rpc_hooks(ROOT))).send("orders", b"body")).code == 0
    older = await (await connect(broker, JavaHook())).send("orders", b"body")
    assert older.code == (ResponseCode.NO_PERMISSION if is_required else 0)


async def test_users_and_policies(start: StartBroker, connect: Callable[..., Awaitable[Peer]]) -> None:
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    async with AdminClient(credentials=ROOT) as admin:
        assert [user.username for user in await admin.users(address)] == ["inner", "root"]
        await admin.create_user([address], UserInfo("alice", "secret12"))
        await admin.create_acl(
            [address], acl_of("User:alice", ["Topic:orders", "Group:g*"], ["Pub", "Sub"], [], "Allow")
        )

        alice = await connect(broker, SigningHook("alice", "secret12"))
        assert (await alice.send("orders", b"body")).code == 0
        assert (await alice.pull("orders", group="group")).code == 0
        assert (await alice.send("others", b"body")).code == ResponseCode.NO_PERMISSION
        denied = await alice.pull("orders", group="another")
        assert "User:alice has no permission to access Group:another from 127.0.0.1" in str(denied.remark)
        assert denied.ext_fields[REASON_FIELD] == RefusalReason.NOT_PERMITTED
        stranger = await (await connect(broker)).send("orders", b"body")
        assert stranger.ext_fields[REASON_FIELD] == RefusalReason.NO_CREDENTIALS

        await admin.update_user([address], UserInfo("alice", user_status="disable"))
        assert (await alice.send("orders", b"body")).remark == "User:alice is disabled."
        await admin.delete_user([address], "alice")
        assert (await alice.send("orders", b"body")).remark == "User:alice is not found."

        settings = await admin.broker_config(address)
        assert "rootpass" not in str(settings)
        with pytest.raises(BrokerError, match="authorizationEnabled"):
            await admin.update_broker_config([address], {"authorizationEnabled": "false"})
        await admin.update_broker_config([address], {"defaultTopicQueueNums": "3"})
        assert broker.config.auth == USERS


async def test_only_super_users_make_super_users(start: StartBroker) -> None:
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    async with (
        AdminClient(credentials=ROOT) as admin,
        AdminClient(credentials=Credentials("alice", "secret12")) as alice,
    ):
        await admin.create_user([address], UserInfo("alice", "secret12"))
        with pytest.raises(BrokerError, match=r"Cluster:DefaultCluster from 127\.0\.0\.1, no matched policies"):
            await alice.create_user([address], UserInfo("bob", "secret12"))
        await admin.create_acl([address], acl_of("User:alice", ["Cluster:*"], ["All"], [], "Allow"))
        await alice.create_user([address], UserInfo("bob", "secret12"))
        for change in (
            alice.create_user([address], UserInfo("eve", "secret12", "Super")),
            alice.update_user([address], UserInfo("alice", user_type="Super")),
            alice.update_user([address], UserInfo("root", "guessed1")),
            alice.delete_user([address], "root"),
        ):
            with pytest.raises(BrokerError, match="d by super user"):
                await change
        with pytest.raises(BrokerError, match="username is blank"):
            await admin.create_user([address], UserInfo(" ", "secret12"))
        assert await admin.user(address, "eve") is None
        assert await admin.acl(address, "User:bob") is None


async def test_plain_acl_needs_a_file(start: StartBroker, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rocketmq\.acl\.plain\.file"):
        await start(AuthConfig(acl_enable=True))
    with pytest.raises(ConfigError, match=r"none\.yml"):
        await start(AuthConfig(acl_enable=True, plain_acl_file=tmp_path / "none.yml"))


async def test_without_access_control_handlers_are_called_at_once(start: StartBroker) -> None:
    broker = await start(AuthConfig())
    assert broker.handlers[RequestCode.SEND_MESSAGE_V2] == broker.features.sending.send


async def test_ways_round_a_policy(start: StartBroker, connect: Callable[..., Awaitable[Peer]]) -> None:
    """Requests that name a permitted resource but act on another one are refused."""
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    for topic in ("orders", "secret", "%RETRY%poppers_orders"):
        broker.topics.create_if_absent(topic, 1)
    async with AdminClient(credentials=ROOT) as admin:
        await admin.create_user([address], UserInfo("alice", "secret12"))
        await admin.create_acl(
            [address], acl_of("User:alice", ["Topic:orders", "Group:poppers"], ["Pub", "Sub"], [], "Allow")
        )
        alice = await connect(broker, SigningHook("alice", "secret12"))
        reply = RequestCode.SEND_REPLY_MESSAGE_V2
        assert (await alice.send("secret", b"x", code=reply)).code == ResponseCode.NO_PERMISSION
        assert (
            await alice.send("orders", b"x", code=reply)
        ).remark == "reply message properties[REPLY_TO_CLIENT] is null"
        others = await alice.send("%RETRY%others", b"x", producer_group="poppers")
        assert "no permission to access Group:others" in str(others.remark)
        mode = b'{"topic":"orders","consumerGroup":"poppers","mode":"POP","popShareQueueNum":0}'
        refused = await alice.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode)
        assert "It needs Update" in str(refused.remark)
        ask = b'{"topic":"secret","consumerGroup":"poppers","clientId":"c"}'
        assert (await alice.ask(RequestCode.QUERY_ASSIGNMENT, body=ask)).code == ResponseCode.NO_PERMISSION


async def test_what_came_back_is_acknowledged_with_the_rights_to_pop_it(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]]
) -> None:
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    broker.topics.create_if_absent("orders", 1)
    async with AdminClient(credentials=ROOT) as admin:
        await admin.create_user([address], UserInfo("alice", "secret12"))
        await admin.create_acl(
            [address], acl_of("User:alice", ["Topic:orders", "Group:poppers"], ["Pub", "Sub"], [], "Allow")
        )
        alice = await connect(broker, SigningHook("alice", "secret12"))
        await alice.send("orders", b"x")
        broker.topics.create_if_absent("%RETRY%poppers_orders", 1)
        fields = {"consumerGroup": "poppers", "queueId": "0", "offset": "0", "extraInfo": "0 0 60000 0 1 broker-a 0 0"}
        for topic, code in (
            ("%RETRY%poppers_orders", ResponseCode.SUCCESS),
            ("%RETRY%poppers+orders", ResponseCode.TOPIC_NOT_EXIST),
            ("%RETRY%poppers_secret", ResponseCode.NO_PERMISSION),
            ("%RETRY%others_orders", ResponseCode.NO_PERMISSION),
        ):
            request = RemotingCommand.request(RequestCode.ACK_MESSAGE, fields={**fields, "topic": topic})
            assert (await alice.connection.invoke(request)).code == code, topic
        # The same name can be the retry topic of a group `poppers_orders`. A pop reads it through its topic.
        pull = {"maxMsgNums": "1", "invisibleTime": "1000", "pollTime": "0", "bornTime": "0", "initMode": "0"}
        request = RemotingCommand.request(
            RequestCode.POP_MESSAGE, fields={**fields, **pull, "topic": "%RETRY%poppers_orders"}
        )
        assert (await alice.connection.invoke(request)).code == ResponseCode.NO_PERMISSION


class Right(NamedTuple):
    """A user with one permission: the resource and the actions on it."""

    user: str
    resource: str
    actions: str


async def add_users(address: str, *rights: Right) -> None:
    async with AdminClient(credentials=ROOT) as admin:
        for right in rights:
            if await admin.user(address, right.user) is None:
                await admin.create_user([address], UserInfo(right.user, "secret12"))
            acl = acl_of(f"User:{right.user}", [right.resource], right.actions.split(","), [], "Allow")
            await admin.create_acl([address], acl)


def place_of(sent: RemotingCommand) -> str:
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    return str(decode_offset_message_id(sent.ext_fields["msgId"])[1])


@pytest.mark.parametrize("claimed", [{}, {"topic": ""}, {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, {"topic": "mine"}])
async def test_who_may_send_to_the_topic_ends_its_transactions(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]], claimed: dict[str, str]
) -> None:
    """Only users who may send to the topic can end its transactions, whatever topic the end request names.

    Older Apache clients omit the topic. Clients that answer a transaction check name the topic of that check.
    """
    broker = await start(USERS)
    await add_users(
        f"127.0.0.1:{broker.port}", Right("alice", "Topic:orders", "Pub"), Right("mallory", "Topic:mine", "Pub")
    )
    alice = await connect(broker, SigningHook("alice", "secret12"))
    mallory = await connect(broker, SigningHook("mallory", "secret12"))
    half = await alice.send("orders", b"x", properties={"TRAN_MSG": "true", "PGROUP": "producers"}, sys_flag=4)
    end = claimed | {
        "producerGroup": "producers",
        "tranStateTableOffset": half.ext_fields["queueOffset"],
        "commitLogOffset": place_of(half),
        "commitOrRollback": "8",
        "fromTransactionCheck": "true",
        "msgId": "KEY",
    }
    denied = await mallory.ask(RequestCode.END_TRANSACTION, fields=dict(end))
    assert denied.code == ResponseCode.NO_PERMISSION
    assert "Topic:orders" in str(denied.remark)
    assert broker.store.queue("orders", 0).max_offset == 0
    assert (await alice.ask(RequestCode.END_TRANSACTION, fields=dict(end))).code == ResponseCode.SUCCESS
    assert broker.store.queue("orders", 0).max_offset == 1


@pytest.mark.parametrize("claimed", [{}, {"topic": ""}, {"topic": "mine"}])
async def test_a_message_is_shown_to_who_may_read_its_topic(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]], claimed: dict[str, str]
) -> None:
    broker = await start(USERS)
    await add_users(
        f"127.0.0.1:{broker.port}", Right("alice", "Topic:orders", "Pub,Get"), Right("mallory", "Topic:mine", "All")
    )
    alice = await connect(broker, SigningHook("alice", "secret12"))
    mallory = await connect(broker, SigningHook("mallory", "secret12"))
    at_once = await alice.send("orders", b"secret")
    later = await alice.send("orders", b"secret", properties={"DELAY": "2"})
    in_an_hour = await alice.send("orders", b"secret", properties={"TIMER_DELAY_SEC": "3600"})
    half = await alice.send("orders", b"secret", properties={"TRAN_MSG": "true", "PGROUP": "p"})
    for sent in (at_once, later, in_an_hour, half):
        view = claimed | {"offset": place_of(sent)}
        denied = await mallory.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields=dict(view))
        assert (denied.code, denied.body) == (ResponseCode.NO_PERMISSION, b"")
        shown = await alice.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields=dict(view))
        assert b"secret" in shown.body, shown.remark


async def test_a_message_is_given_back_by_who_may_read_it(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]]
) -> None:
    broker = await start(USERS)
    await add_users(
        f"127.0.0.1:{broker.port}",
        Right("alice", "Topic:orders", "Pub,Sub"),
        Right("alice", "Group:readers", "Sub"),
        Right("mallory", "Topic:mine", "All"),
        Right("mallory", "Group:mine", "All"),
    )
    alice = await connect(broker, SigningHook("alice", "secret12"))
    mallory = await connect(broker, SigningHook("mallory", "secret12"))
    place = place_of(await alice.send("orders", b"secret"))
    half = place_of(await alice.send("orders", b"half", properties={"TRAN_MSG": "true", "PGROUP": "p"}))
    back = {"group": "mine", "delayLevel": "1", "originTopic": "mine"}
    for offset in (place, half):
        denied = await mallory.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields=back | {"offset": offset})
        assert denied.code == ResponseCode.NO_PERMISSION
    # The transaction is still open, so no consumer can have received this message.
    back = {"group": "readers", "delayLevel": "1"}
    denied = await alice.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields=back | {"offset": half})
    assert "Topic:RMQ_SYS_TRANS_HALF_TOPIC" in str(denied.remark)
    denied = await mallory.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields=back | {"offset": place})
    assert "Group:readers" in str(denied.remark)
    assert broker.store.queue("SCHEDULE_TOPIC_XXXX", 0).max_offset == 0
    given = await alice.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields=back | {"offset": place})
    assert given.code == ResponseCode.SUCCESS
    assert broker.store.queue("SCHEDULE_TOPIC_XXXX", 0).max_offset == 1


async def test_the_cluster_is_the_brokers(start: StartBroker, connect: Callable[..., Awaitable[Peer]]) -> None:
    broker = await start(USERS)
    await add_users(f"127.0.0.1:{broker.port}", Right("mallory", "Cluster:mine", "All"))
    mallory = await connect(broker, SigningHook("mallory", "secret12"))
    for code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.AUTH_LIST_USER):
        denied = await mallory.ask(code, body=b"brokerPermission=4", fields={"clusterName": "mine"})
        assert "Cluster:DefaultCluster" in str(denied.remark)
    assert broker.config.broker_permission == 6


QUICK = {"transaction_time_out": 50, "transaction_check_interval": 20, "transaction_op_batch_interval": 10}


async def test_only_who_may_send_to_the_topic_is_asked_about_a_transaction(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """Transaction checks go only to users who may send to the topic, because a check contains the half message.

    Any client can claim to be a member of the producer group.
    """
    broker = Broker(config(tmp_path / "store", auth=USERS, **QUICK))
    await broker.start()
    stack.push_async_callback(broker.stop)
    await add_users(
        f"127.0.0.1:{broker.port}", Right("alice", "Topic:orders", "Pub"), Right("mallory", "Topic:mine", "Pub")
    )
    producers = {}
    for user in ("mallory", "alice"):
        producer = producers[user] = Producer(hooks=[SigningHook(user, "secret12")])
        await producer.connect(broker.port)
        stack.push_async_callback(producer.client.close)
    for _ in range(3):
        await producers["alice"].prepare("orders", b"secret")
        assert (await producers["alice"].question())[1].body == b"secret"
    assert producers["mallory"].questions.empty()
    # He receives the checks of his own topic, in the same group.
    half = await producers["mallory"].prepare("mine", b"his own")
    assert (await producers["mallory"].question())[1].body == b"his own"
    assert half.queue_offset > 0
    assert {group: len(members) for group, members in broker.members.producers.items()} == {"producers": 2}


async def test_replies_are_for_the_user_who_has_the_client_id(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]], stack: AsyncExitStack
) -> None:
    """A reply goes to the user who sent the request.

    The client ids of a group are visible to all its members, so an id is no proof.
    """
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    await add_users(address, Right("alice", "Topic:orders", "Pub"), Right("mallory", "Topic:mine", "Pub"))
    pushed: list[str] = []

    async def join(user: str) -> RemotingClient:
        def take(connection: Connection, request: RemotingCommand) -> Reply:
            pushed.append(user)
            return RemotingCommand.response()

        client = RemotingClient({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take}, hooks=[SigningHook(user, "secret12")])
        stack.push_async_callback(client.close)
        data = HeartbeatData(client_id="asker", producer_data_set=[ProducerData("askers")])
        beat = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_json(data))
        assert (await client.call(address, beat, 5000)).code == ResponseCode.SUCCESS
        return client

    async def reply() -> None:
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        replier = await connect(broker, SigningHook("mallory", "secret12"))
        sent = await replier.send(
            "DefaultCluster_REPLY_TOPIC", b"x", code=code, properties={"REPLY_TO_CLIENT": "asker"}
        )
        assert sent.code == ResponseCode.SUCCESS, sent.remark

    first = await join("alice")
    await join("mallory")
    await reply()
    assert pushed == ["alice"]
    # She can have a new connection before the broker detects that the old one is closed.
    await join("alice")
    await first.close()
    await reply()
    assert pushed == ["alice", "alice"]


async def test_who_may_nothing_is_no_producer(tmp_path: Path, start: StartBroker) -> None:
    broker = await start(USERS)
    async with AdminClient(credentials=ROOT) as admin:
        await admin.create_user([f"127.0.0.1:{broker.port}"], UserInfo("nobody", "secret12"))
    producer = Producer(hooks=[SigningHook("nobody", "secret12")])
    with pytest.raises(AssertionError):
        await producer.connect(broker.port)
    await producer.client.close()
    assert not broker.members.producers


async def test_passwords_are_shown_to_super_users(start: StartBroker, connect: Callable[..., Awaitable[Peer]]) -> None:
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    await add_users(address, Right("auditor", "Cluster:*", "All"))
    async with (
        AdminClient(credentials=ROOT) as root,
        AdminClient(credentials=Credentials("auditor", "secret12")) as auditor,
    ):
        assert await auditor.user(address, "root") == UserInfo("root", None, "Super", "enable")
        assert [user.password for user in await auditor.users(address)] == [None] * 3
        assert await root.user(address, "auditor") == UserInfo("auditor", "secret12", "Normal", "enable")
        assert [user.password for user in await root.users(address)] == ["secret12", "innerpass", "rootpass"]


async def test_users_are_copied_by_super_users(start: StartBroker, tmp_path: Path, stack: AsyncExitStack) -> None:
    """Copies users as `mqadmin copyUser` does.

    It reads a user from one broker and creates or updates the user on the other one.
    """
    source = f"127.0.0.1:{(await start(USERS)).port}"
    other = Broker(config(tmp_path / "other", auth=USERS))
    await other.start()
    stack.push_async_callback(other.stop)
    target = f"127.0.0.1:{other.port}"
    await add_users(source, Right("auditor", "Cluster:*", "All"))
    await add_users(target, Right("auditor", "Cluster:*", "All"))

    async def copy(admin: AdminClient) -> None:
        for user in await admin.users(source):
            there = await admin.user(target, user.username or "")
            await (admin.create_user if there is None else admin.update_user)([target], user)

    async with (
        AdminClient(credentials=ROOT) as root,
        AdminClient(credentials=Credentials("auditor", "secret12")) as auditor,
    ):
        await root.create_user([source], UserInfo("alice", "alices12"))
        with pytest.raises(BrokerError, match="password can not be blank"):
            await copy(auditor)
        await copy(root)
        assert [user.username for user in await root.users(target)] == ["alice", "auditor", "inner", "root"]
    async with AdminClient(credentials=Credentials("alice", "alices12")) as alice:
        # Her password is valid on the other broker, but she has no permission there yet.
        with pytest.raises(BrokerError, match="User:alice has no permission"):
            await alice.users(target)


async def test_a_password_is_not_shown_to_who_only_says_that_it_is_super(start: StartBroker) -> None:
    listed = f"{RequestCode.AUTH_LIST_USER},{RequestCode.AUTH_CREATE_USER}"
    broker = await start(replace(USERS, authentication_whitelist=listed, authorization_whitelist=listed))
    remoting = RemotingClient()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    shown = await peer.ask(RequestCode.AUTH_LIST_USER, fields={"AccessKey": "root"})
    assert b"root" in shown.body
    assert b"rootpass" not in shown.body
    refused = await peer.ask(
        RequestCode.AUTH_CREATE_USER, fields={"username": "eve"}, body=b'{"password":"x","userType":"Super"}'
    )
    assert refused.remark == "The super user can only be created by super user"
    await remoting.close()


async def test_an_account_of_plain_acl_is_no_super_user_by_its_name(start: StartBroker, tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN_ACL.replace("operator", "rootuser"))
    super_user = '{"username":"rootuser","password":"rootpass"}'
    broker = await start(AuthConfig(acl_enable=True, plain_acl_file=file, init_authentication_user=super_user))
    async with AdminClient(credentials=Credentials("rootuser", "secret-of-0")) as admin:
        [user] = await admin.users(f"127.0.0.1:{broker.port}")
        assert user == UserInfo("rootuser", None, "Super", "enable")


async def test_without_access_control_no_password_is_shown(start: StartBroker) -> None:
    broker = await start(AuthConfig(init_authentication_user='{"username":"root","password":"rootpass"}'))
    async with AdminClient(credentials=ROOT) as admin:
        [user] = await admin.users(f"127.0.0.1:{broker.port}")
        assert user == UserInfo("root", None, "Super", "enable")
