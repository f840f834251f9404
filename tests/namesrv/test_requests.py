"""The request codes of a NameServer over a socket. BROKER_HEARTBEAT is tested in `test_server`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from namesrv_support import broker_header, registration, topics_body

from gantrymq.config import load_properties
from gantrymq.errors import BrokerError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.route import ClusterInfo, TopicList, TopicRouteData
from gantrymq.protocol.bodies.topic_config import DataVersion, TopicConfig, TopicConfigTable
from gantrymq.protocol.codes import VERSION_4_9_4, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.namesrv import (
    BrokerNameRequestHeader,
    BrokerRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetKVListByNamespaceRequestHeader,
    KVConfigRequestHeader,
    PutKVConfigRequestHeader,
)
from gantrymq.protocol.headers.topic import (
    DeleteTopicInNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    TopicRequestHeader,
)
from gantrymq.remoting.client import RemotingClient


class Asker:
    """Sends requests to one NameServer."""

    def __init__(self, client: RemotingClient, server: NameServer) -> None:
        self._client, self._server = client, server

    async def __call__(self, request: RemotingCommand | int, header: Header | None = None, body: bytes = b"") -> Any:
        if not isinstance(request, RemotingCommand):
            request = RemotingCommand.request(request, header, body)
        return await self._client.call(self._server.address, request)

    async def refused(self, request: RemotingCommand | int, header: Header | None = None, body: bytes = b"") -> Any:
        """Sends a request that must fail, and returns (code, remark)."""
        with pytest.raises(BrokerError) as error:
            await self(request, header, body)
        return error.value.code, error.value.remark

    async def route(self, topic: str) -> TopicRouteData:
        response = await self(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))
        return decode_json(response.body, TopicRouteData)

    async def topics(self, code: int, header: Header | None = None) -> list[str]:
        return sorted(decode_json((await self(code, header)).body, TopicList).topic_list)


@pytest.fixture
def ask(client: RemotingClient, server: NameServer) -> Asker:
    return Asker(client, server)


# -- registration -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
async def test_register_broker(ask: Asker, compressed: bool) -> None:
    response = await ask(
        registration(
            broker_header(compressed=compressed),
            topics_body("A", TopicConfig("B", 4, 8, 6), filter_servers=["10.0.0.9:1"]),
        )
    )
    assert (response.ext_fields, response.body) == ({}, b"")
    route = await ask.route("B")
    assert msgspec.to_builtins(route, str_keys=True) == {
        "queueDatas": [
            {"brokerName": "broker-a", "readQueueNums": 4, "writeQueueNums": 8, "perm": 6, "topicSysFlag": 0}
        ],
        "brokerDatas": [
            {
                "cluster": "DefaultCluster",
                "brokerName": "broker-a",
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "zoneName": None,
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {"10.0.0.1:10911": ["10.0.0.9:1"]},
        "orderTopicConf": None,
        "topicQueueMappingByBroker": None,
    }


async def test_register_broker_compressed_without_saying_so(ask: Asker) -> None:
    # Java's broker sends this with compressedRegister=true.
    request = registration(broker_header(compressed=True), topics_body("A", "B"))
    request.ext_fields["compressed"] = "false"
    await ask(request)
    assert (await ask.route("A")).queue_datas[0].broker_name == "broker-a"


async def test_register_broker_tells_a_slave_its_master(ask: Asker) -> None:
    await ask(registration(broker_header(), topics_body("A", "B")))
    response = await ask(registration(broker_header(address="10.0.0.2:10911", broker_id=1), topics_body("A", "B")))
    assert response.ext_fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
    assert (await ask.route("A")).broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


async def test_register_broker_of_a_broker_before_3_0_11(ask: Asker) -> None:
    await ask(registration(broker_header(), topics_body("A", "B", filter_servers=["10.0.0.9:1"])))
    table = TopicConfigTable({"C": TopicConfig("C", 2, 3)}, DataVersion(0, 2, 2))
    request = RemotingCommand.request(RequestCode.REGISTER_BROKER, broker_header(), encode_json(table))
    request.version = 36
    await ask(request)
    route = await ask.route("C")
    assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].write_queue_nums) == (2, 3)
    # Such a broker does not report filter servers, so the existing ones stay.
    assert route.filter_server_table == {"10.0.0.1:10911": ["10.0.0.9:1"]}


async def test_register_broker_without_a_body_keeps_the_topics(ask: Asker) -> None:
    await ask(registration(broker_header(), topics_body("A", "B", filter_servers=["10.0.0.9:1"])))
    await ask(RemotingCommand.request(RequestCode.REGISTER_BROKER, broker_header()))
    route = await ask.route("A")
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert route.filter_server_table == {}


async def test_register_broker_with_binary_headers(ask: Asker) -> None:
    request = registration(broker_header(), topics_body("A", "B"))
    request.serialize_type = SerializeType.ROCKETMQ
    assert (await ask(request)).serialize_type == SerializeType.ROCKETMQ
    assert (await ask.route("A")).queue_datas[0].broker_name == "broker-a"


async def test_register_broker_of_static_topics(ask: Asker) -> None:
    body = topics_body("A", "B")
    mapping = {"topic": "A", "bname": "broker-a", "totalQueues": 4, "epoch": 1, "currIdMap": {"0": 0}}
    body.topic_config_serialize_wrapper.topic_queue_mapping_info_map["A"] = mapping
    for compressed in (False, True):
        await ask(registration(broker_header(compressed=compressed), body))
        assert (await ask.route("A")).topic_queue_mapping_by_broker == {"broker-a": mapping}
        assert (await ask.route("B")).topic_queue_mapping_by_broker is None
        body.topic_config_serialize_wrapper.data_version.advance()


async def test_register_broker_returns_the_order_topics(ask: Asker, config: NamesrvConfig) -> None:
    await ask(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="A", value="a:4"))
    response = await ask(registration(broker_header(), topics_body("A", "B")))
    assert response.body == b'{"table":{"A":"a:4"}}'
    config.return_order_topic_config_to_broker = False
    assert (await ask(registration(broker_header(), topics_body("A", "B")))).body == b""


async def test_unregister_broker(ask: Asker) -> None:
    await ask(registration(broker_header(), topics_body("A", "B")))
    header = BrokerRequestHeader(
        broker_name="broker-a", broker_addr="10.0.0.1:10911", cluster_name="DefaultCluster", broker_id=0
    )
    for _ in range(2):
        await ask(RequestCode.UNREGISTER_BROKER, header)
    assert await ask.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []
    assert (await ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


async def test_query_data_version(ask: Asker) -> None:
    header = BrokerRequestHeader(
        broker_name="broker-a", broker_addr="10.0.0.1:10911", cluster_name="DefaultCluster", broker_id=0
    )
    body = topics_body("A", "B")
    version = body.topic_config_serialize_wrapper.data_version
    response = await ask(RequestCode.QUERY_DATA_VERSION, header, encode_json(version))
    assert (response.ext_fields, response.body) == ({"changed": "true"}, b"")
    await ask(registration(broker_header(), body))
    response = await ask(RequestCode.QUERY_DATA_VERSION, header, encode_json(version))
    assert (response.ext_fields, response.body) == ({"changed": "false"}, encode_json(version))
    other = DataVersion(version.state_version, version.timestamp, version.counter + 1)
    for theirs in (encode_json(other), b""):
        response = await ask(RequestCode.QUERY_DATA_VERSION, header, theirs)
        assert (response.ext_fields, response.body) == ({"changed": "true"}, encode_json(version))


# -- routes -----------------------------------------------------------------------------------------------------


async def test_get_route_of_an_unknown_topic(ask: Asker) -> None:
    code, remark = await ask.refused(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="X"))
    assert code == ResponseCode.TOPIC_NOT_EXIST
    assert remark.startswith("No topic route info in name server for the topic: X")


async def test_get_route_without_a_topic_names_the_field(ask: Asker) -> None:
    code, remark = await ask.refused(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "`topic`" in remark


@pytest.mark.parametrize("version", [0, VERSION_4_9_4 - 1, VERSION_4_9_4, 100_000])
async def test_get_route_is_standard_json_for_every_client(ask: Asker, version: int) -> None:
    await ask(registration(broker_header(), topics_body("A", "B")))
    request = RemotingCommand.request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="A", accept_standard_json_only=True)
    )
    request.version = version
    response = await ask(request)
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in response.body
    assert b"null" not in response.body


async def test_get_route_follows_every_change(ask: Asker) -> None:
    await ask(registration(broker_header(), topics_body("A", "B")))
    first = await ask.route("A")
    assert await ask.route("B") == first
    await ask(registration(broker_header(), topics_body("A", TopicConfig("B", 1, 1), version=2)))
    assert await ask.route("A") == first
    assert (await ask.route("B")).queue_datas[0].read_queue_nums == 1
    await ask(registration(broker_header("broker-b", "10.0.0.2:10911"), topics_body("A", "C")))
    assert [q.broker_name for q in (await ask.route("A")).queue_datas] == ["broker-a", "broker-b"]
    # The broker has another address and the same topics.
    await ask(registration(broker_header(address="10.0.0.3:10911"), topics_body("A", "B", version=2)))
    assert [b.broker_addrs for b in (await ask.route("A")).broker_datas] == [
        {0: "10.0.0.3:10911"},
        {0: "10.0.0.2:10911"},
    ]
    await ask(
        registration(broker_header(address="10.0.0.3:10911"), topics_body("A", version=2, filter_servers=["f:1"]))
    )
    assert (await ask.route("A")).filter_server_table == {"10.0.0.3:10911": ["f:1"]}


async def test_get_route_with_the_order_of_a_topic(ask: Asker, config: NamesrvConfig) -> None:
    await ask(registration(broker_header(), topics_body("A", "B")))
    await ask(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace="ORDER_TOPIC_CONFIG", key="A", value="a:4"))
    assert (await ask.route("A")).order_topic_conf is None
    config.order_message_enable = True
    assert (await ask.route("A")).order_topic_conf == "a:4"
    assert (await ask.route("B")).order_topic_conf is None


async def test_get_route_of_a_zone(ask: Asker) -> None:
    for name, address, zone in (("a", "10.0.0.1:1", "north"), ("b", "10.0.0.2:1", "south")):
        await ask(
            registration(
                broker_header(name, address),
                topics_body("A", "B", filter_servers=[address]),
                fields={"__ZONE_NAME": zone},
            )
        )
    header = GetRouteInfoRequestHeader(topic="A")

    async def names(fields: dict[str, str]) -> tuple[list[str], list[str], list[str]]:
        request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, fields=fields)
        route = decode_json((await ask(request)).body, TopicRouteData)
        return (
            [b.broker_name for b in route.broker_datas],
            [q.broker_name for q in route.queue_datas],
            list(route.filter_server_table),
        )

    both = (["a", "b"], ["a", "b"], ["10.0.0.1:1", "10.0.0.2:1"])
    assert await names({}) == both
    assert await names({"__ZONE_NAME": "north"}) == both
    assert await names({"__ZONE_MODE": "true", "__ZONE_NAME": " "}) == both
    assert await names({"__ZONE_MODE": "true", "__ZONE_NAME": "North"}) == (["a"], ["a"], ["10.0.0.1:1"])
    assert await names({"__ZONE_MODE": "true", "__ZONE_NAME": "west"}) == ([], [], [])


async def test_get_route_waits_until_the_server_is_ready(ask: Asker, config: NamesrvConfig) -> None:
    await ask(registration(broker_header(), topics_body("A", "B")))
    config.need_wait_for_service = True
    header = GetRouteInfoRequestHeader(topic="A")
    refused = await ask.refused(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
    assert refused == (ResponseCode.SYSTEM_ERROR, "name server not ready")
    config.wait_seconds_for_service = 0
    assert (await ask.route("A")).queue_datas


async def test_get_broker_cluster_info(ask: Asker) -> None:
    await ask(registration(broker_header("a", "10.0.0.1:1", cluster="c1"), topics_body("A", "B")))
    await ask(registration(broker_header("b", "10.0.0.2:1", cluster="c2"), topics_body("A", "B")))
    await ask(registration(broker_header("a", "10.0.0.3:1", cluster="c1", broker_id=2), topics_body("A", "B")))
    response = await ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    info = decode_json(response.body, ClusterInfo)
    assert info.cluster_addr_table == {"c1": ["a"], "c2": ["b"]}
    assert {name: b.broker_addrs for name, b in info.broker_addr_table.items()} == {
        "a": {0: "10.0.0.1:1", 2: "10.0.0.3:1"},
        "b": {0: "10.0.0.2:1"},
    }
    assert b"null" not in response.body


async def test_get_broker_member_group(ask: Asker) -> None:
    await ask(registration(broker_header(), topics_body("A", "B")))
    for name, addresses in (("broker-a", {"0": "10.0.0.1:10911"}), ("nobody", {})):
        header = GetBrokerMemberGroupRequestHeader(cluster_name="DefaultCluster", broker_name=name)
        response = await ask(RequestCode.GET_BROKER_MEMBER_GROUP, header)
        assert decode_json(response.body, dict[str, Any]) == {
            "brokerMemberGroup": {"cluster": "DefaultCluster", "brokerName": name, "brokerAddrs": addresses}
        }


# -- topics -----------------------------------------------------------------------------------------------------


async def test_topic_lists(ask: Asker, config: NamesrvConfig) -> None:
    unit, sub, both = (TopicConfig(name, topic_sys_flag=flag) for name, flag in (("U", 1), ("S", 2), ("US", 3)))
    await ask(registration(broker_header("a", "10.0.0.1:1", cluster="c1"), topics_body("A", unit, sub, both)))
    await ask(registration(broker_header("b", "10.0.0.2:1", cluster="c2"), topics_body("A", "B")))
    assert await ask.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["A", "B", "S", "U", "US"]
    assert await ask.topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ["a", "b", "c1", "c2"]
    system = decode_json((await ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body, TopicList)
    assert system.broker_addr in ("10.0.0.1:1", "10.0.0.2:1")
    by_cluster = {
        cluster: await ask.topics(RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(cluster=cluster))
        for cluster in ("c1", "c2", "c3")
    }
    assert by_cluster == {"c1": ["A", "S", "U", "US"], "c2": ["A", "B"], "c3": []}
    assert await ask.topics(RequestCode.GET_UNIT_TOPIC_LIST) == ["U", "US"]
    assert await ask.topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["S", "US"]
    assert await ask.topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["S"]

    config.enable_all_topic_list = config.enable_topic_list = False
    for code in (206, 224, 311, 312, 313):
        header = GetTopicsByClusterRequestHeader(cluster="c1") if code == 224 else None
        assert await ask.refused(code, header) == (ResponseCode.SYSTEM_ERROR, "disable")
    assert await ask.topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ["a", "b", "c1", "c2"]


async def test_wipe_and_add_write_perm(ask: Asker) -> None:
    body = topics_body("A", TopicConfig("B", perm=2))
    await ask(registration(broker_header(), body))
    await ask(registration(broker_header("broker-b", "10.0.0.2:10911"), topics_body("A", "C")))

    async def perms() -> list[int]:
        return [q.perm for topic in "AB" for q in (await ask.route(topic)).queue_datas]

    header = BrokerNameRequestHeader(broker_name="broker-a")
    assert (await ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)).ext_fields == {"wipeTopicCount": "2"}
    assert await perms() == [4, 6, 0]
    # A registration with the same version does not restore the permission. One with a new version does.
    await ask(registration(broker_header(), body))
    assert await perms() == [4, 6, 0]
    assert (await ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)).ext_fields == {"addTopicCount": "2"}
    assert await perms() == [6, 6, 6]
    await ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
    await ask(registration(broker_header(), topics_body("A", TopicConfig("B", perm=2), version=2)))
    assert await perms() == [6, 6, 2]
    nobody = BrokerNameRequestHeader(broker_name="nobody")
    assert (await ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, nobody)).ext_fields == {"wipeTopicCount": "0"}


async def test_register_topic(ask: Asker) -> None:
    await ask(registration(broker_header(), topics_body("A", "B")))
    header = TopicRequestHeader(topic="N")
    queues = [{"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0}]
    await ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, encode_json({"queueDatas": queues}))
    assert (await ask.route("N")).queue_datas[0].read_queue_nums == 3
    await ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, TopicRequestHeader(topic="A"), encode_json({"queueDatas": queues}))
    assert (await ask.route("A")).queue_datas[0].read_queue_nums == 3
    # If one broker is unknown, nothing is changed.
    queues = [{**queues[0], "readQueueNums": 9}, {**queues[0], "brokerName": "nobody"}]
    await ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, encode_json({"queueDatas": queues}))
    await ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, header)
    assert (await ask.route("N")).queue_datas[0].read_queue_nums == 3


async def test_delete_topic(ask: Asker) -> None:
    await ask(registration(broker_header("a", "10.0.0.1:1", cluster="c1"), topics_body("A", "B")))
    await ask(registration(broker_header("b", "10.0.0.2:1", cluster="c2"), topics_body("A", "B")))
    delete = RequestCode.DELETE_TOPIC_IN_NAMESRV
    for cluster in ("c3", "c1"):
        await ask(delete, DeleteTopicInNamesrvRequestHeader(topic="A", cluster_name=cluster))
    assert [q.broker_name for q in (await ask.route("A")).queue_datas] == ["b"]
    await ask(delete, DeleteTopicInNamesrvRequestHeader(topic="A", cluster_name="c2"))
    await ask(delete, DeleteTopicInNamesrvRequestHeader(topic="B"))
    await ask(delete, DeleteTopicInNamesrvRequestHeader(topic="B"))
    assert await ask.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []
    # If a master registers the same version again, missing topics are added.
    await ask(registration(broker_header("a", "10.0.0.1:1", cluster="c1"), topics_body("A", "B")))
    assert await ask.topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["A", "B"]


# -- KV configuration and configuration -------------------------------------------------------------------------


async def test_kv_config(ask: Asker) -> None:
    put = RequestCode.PUT_KV_CONFIG
    await ask(put, PutKVConfigRequestHeader(namespace="n", key="k", value="v"))
    await ask(put, PutKVConfigRequestHeader(namespace="n", key="k2", value="ü = ; ,"))
    get = await ask(RequestCode.GET_KV_CONFIG, KVConfigRequestHeader(namespace="n", key="k2"))
    assert get.ext_fields == {"value": "ü = ; ,"}
    listed = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, GetKVListByNamespaceRequestHeader(namespace="n"))
    assert decode_json(listed.body, dict[str, Any]) == {"table": {"k": "v", "k2": "ü = ; ,"}}
    await ask(RequestCode.DELETE_KV_CONFIG, KVConfigRequestHeader(namespace="n", key="k"))
    await ask(RequestCode.DELETE_KV_CONFIG, KVConfigRequestHeader(namespace="n", key="k"))
    code, remark = await ask.refused(RequestCode.GET_KV_CONFIG, KVConfigRequestHeader(namespace="n", key="k"))
    assert (code, remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: n Key: k")
    code, _ = await ask.refused(
        RequestCode.GET_KVLIST_BY_NAMESPACE, GetKVListByNamespaceRequestHeader(namespace="never")
    )
    assert code == ResponseCode.QUERY_NOT_FOUND
    code, remark = await ask.refused(put, KVConfigRequestHeader(namespace="n", key="k"))
    assert code == ResponseCode.SYSTEM_ERROR
    assert "value" in remark


async def test_get_and_update_config(ask: Asker, config: NamesrvConfig, tmp_path: Path) -> None:
    body = b"enableTopicList = false\nscanNotActiveBrokerInterval=1000\nunheardOf=1\n"
    await ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, body)
    assert (config.enable_topic_list, config.scan_not_active_broker_interval) == (False, 1000)
    assert (await ask.refused(RequestCode.GET_UNIT_TOPIC_LIST))[1] == "disable"
    (tmp_path / "got.properties").write_bytes((await ask(RequestCode.GET_NAMESRV_CONFIG)).body)
    got = load_properties(tmp_path / "got.properties")
    assert got["enableTopicList"] == "false"
    assert got["kvConfigPath"] == str(config.kv_config_path)
    assert "unheardOf" not in got
    assert load_properties(config.config_store_path).items() <= got.items()


@pytest.mark.parametrize("key", ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome", "listenPort"])
async def test_update_config_refuses_the_black_list(ask: Asker, config: NamesrvConfig, key: str) -> None:
    config.config_black_list = ["listenPort"]
    body = f"enableTopicList=false\n{key}=1".encode()
    code, remark = await ask.refused(RequestCode.UPDATE_NAMESRV_CONFIG, None, body)
    assert code == ResponseCode.NO_PERMISSION
    assert key in remark
    assert config.enable_topic_list
    assert not config.config_store_path.exists()


async def test_update_config_refuses_a_bad_value(ask: Asker, config: NamesrvConfig) -> None:
    body = b"enableTopicList=false\nscanNotActiveBrokerInterval=soon"
    code, remark = await ask.refused(RequestCode.UPDATE_NAMESRV_CONFIG, None, body)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "scanNotActiveBrokerInterval=soon" in remark
    assert config.enable_topic_list


async def test_a_code_of_another_server_is_refused(ask: Asker) -> None:
    code, remark = await ask.refused(RequestCode.PULL_MESSAGE)
    assert (code, remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 11 not supported")
