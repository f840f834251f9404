"""The request handlers of a NameServer, one per request code (namesrv/processor/*).

A handler reads the header, reads or changes the tables, and responds at once. There are two exceptions: a registration
can be large, so it runs in steps. A change to a file is on disk before the response is sent. An invalid request changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from gantrymq.background.failures import failure_fields
from gantrymq.background.jobs import Jobs
from gantrymq.config import format_properties
from gantrymq.errors import BodyError, RefusalReason, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.namesrv import lost_brokers
from gantrymq.namesrv.brokers import MinBrokerIdChange
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.kv_config import KVConfigManager
from gantrymq.namesrv.registration import check_queues, read_registration
from gantrymq.namesrv.responses import encode_body, in_zone
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.protocol.bodies.route import KVTable, TopicList, TopicRouteData
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.namesrv import (
    AddWritePermResponseHeader,
    BrokerHeartbeatRequestHeader,
    BrokerNameRequestHeader,
    BrokerRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    KVConfigRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerResponseHeader,
    WipeWritePermResponseHeader,
)
from gantrymq.protocol.headers.topic import (
    DeleteTopicInNamesrvRequestHeader,
    GetTopicsByClusterRequestHeader,
    TopicRequestHeader,
)
from gantrymq.protocol.private_fields import AWAITED_BROKERS_FIELD, UPTIME_FIELD
from gantrymq.remoting.configuration import Configuration
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.file_changes import FileChanges
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Maximum size of a request body that contains a topic's queues or a data version, in bytes.
MAX_ROUTE_BYTES = 256 * 1024
MAX_VERSION_BYTES = 4 * 1024

#: KV namespace with "broker:queues;..." by topic, for producers with an order over all queues (NamesrvUtil).
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
#: Fields with a broker's zone and a client's preferred zone (MixAll). They are not part of the header classes.
ZONE_NAME_FIELD = "__ZONE_NAME"
ZONE_MODE_FIELD = "__ZONE_MODE"

_ZONE_MODE_BYTES = ZONE_MODE_FIELD.encode()
_response = RemotingCommand.response


class RequestHandlers:
    """Handles the requests of a NameServer. `notify` is called with changes of the lowest broker id."""

    def __init__(
        self,
        config: NamesrvConfig,
        configuration: Configuration[NamesrvConfig],
        table: RouteTable,
        kv_config: KVConfigManager,
        changes: FileChanges,
        long_requests: LongRequests,
        jobs: Jobs,
        notify: Callable[[Iterable[MinBrokerIdChange]], None],
    ) -> None:
        self._config = config
        self._configuration = configuration
        self._table = table
        self._kv_config = kv_config
        self._changes = changes
        self._long_requests = long_requests
        self._jobs = jobs
        self._notify = notify
        self._started = monotonic()

    def by_code(self) -> dict[int, RequestHandler]:
        """Returns the handlers by request code, for a RemotingServer."""
        return {
            RequestCode.PUT_KV_CONFIG: self._put_kv_config,
            RequestCode.GET_KV_CONFIG: self._get_kv_config,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._get_kv_list,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._get_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._get_cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._get_member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._get_all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._get_topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda c, r: _listed(self._table.system_topics()),
            RequestCode.GET_UNIT_TOPIC_LIST: lambda c, r: self._topic_list(self._table.unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: lambda c, r: self._topic_list(self._table.unit_sub_topics),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: lambda c, r: self._topic_list(
                self._table.unit_sub_ununit_topics
            ),
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    # -- clients ------------------------------------------------------------------------------------------------

    def _get_route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        # The response is always standard JSON, so the request's field acceptStandardJsonOnly is ignored.
        topic = request.read_header(TopicRequestHeader).topic
        config = self._config
        if config.need_wait_for_service and monotonic() - self._started < config.wait_seconds_for_service:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, "name server not ready", RefusalReason.NAME_SERVER_NOT_READY
            )
        # Applies only to GantryMQ's clients. All other clients get the same response as from Java's NameServer.
        fields = self._private_fields(topic) if request.language == LanguageCode.PYTHON else None
        zone_name = None
        if _ZONE_MODE_BYTES in request.raw_ext and request.ext_fields.get(ZONE_MODE_FIELD, "").lower() == "true":
            zone_name = request.ext_fields.get(ZONE_NAME_FIELD, "").strip()
        order = self._kv_config.get(ORDER_TOPIC_NAMESPACE, topic) if config.order_message_enable else None
        if zone_name or order is not None:
            route = self._table.route(topic)
            body = encode_body(_narrowed(route, zone_name, order)) if route is not None else None
        else:
            body = self._table.encoded_route(topic)
        if body is None:
            # Not logged: clients repeat the request until the topic exists.
            return _response(
                ResponseCode.TOPIC_NOT_EXIST,
                fields=fields,
                remark=f"No topic route info in name server for the topic: {topic}. Create it, or let a broker with "
                f"autoCreateTopicEnable=true do so at the first message; `gantry doctor {topic}` says what is missing, "
                "docs/troubleshooting.md more.",
            )
        return _response(body=body, fields=fields)

    def _private_fields(self, topic: str) -> dict[str, str]:
        fields = {UPTIME_FIELD: str(int((monotonic() - self._started) * 1000))}
        awaited = self._table.lost.awaited(topic)
        if awaited is not None:
            fields[AWAITED_BROKERS_FIELD] = awaited
        return fields

    def _get_cluster_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return _response(body=encode_body(self._table.cluster_info()))

    def _get_member_group(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(GetBrokerMemberGroupRequestHeader)
        group = {
            "cluster": header.cluster_name,
            "brokerName": header.broker_name,
            "brokerAddrs": self._table.broker_addresses(header.broker_name),
        }
        return _response(body=encode_body({"brokerMemberGroup": group}))

    def _get_all_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        if not self._config.enable_all_topic_list:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "disable")
        return _listed(self._table.all_topics())

    def _get_topics_by_cluster(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        cluster_name = request.read_header(GetTopicsByClusterRequestHeader).cluster
        return self._topic_list(lambda: self._table.topics_of_cluster(cluster_name))

    def _topic_list(self, topics: Callable[[], TopicList]) -> RemotingCommand:
        if not self._config.enable_topic_list:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "disable")
        return _listed(topics())

    # -- brokers ------------------------------------------------------------------------------------------------

    def _register_broker(self, connection: Connection, request: RemotingCommand) -> Reply:
        return self._long_requests.run(connection, request, self._registered(connection, request))

    def _registered(self, connection: Connection, request: RemotingCommand) -> Generator[None, None, Reply]:
        header, body = yield from read_registration(request)
        registered = yield from self._table.register_in_steps(
            header,
            body,
            zone_name=request.ext_fields.get(ZONE_NAME_FIELD),
            connection=connection,
            now_ms=_now_ms(),
        )
        if registered.min_broker_id_change is not None:
            self._notify([registered.min_broker_id_change])
        order_topics = None
        if self._config.return_order_topic_config_to_broker:
            order_topics = self._kv_config.namespace(ORDER_TOPIC_NAMESPACE)
        return _response(
            header=RegisterBrokerResponseHeader(
                ha_server_addr=registered.ha_server_addr, master_addr=registered.master_addr
            ),
            body=encode_body(KVTable(order_topics)) if order_topics is not None else b"",
        )

    def _unregister_broker(self, connection: Connection, request: RemotingCommand) -> Reply:
        # Runs as a long request, and thus after earlier registrations of the same broker.
        return self._long_requests.run(connection, request, self._unregistered(request))

    def _unregistered(self, request: RemotingCommand) -> Generator[None, None, Reply]:
        self._notify(self._table.unregister([request.read_header(BrokerRequestHeader)]))
        yield
        return _response()

    def _broker_heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(BrokerHeartbeatRequestHeader)
        self._table.heartbeat(header.cluster_name, header.broker_addr, _now_ms())
        return _response()

    def _query_data_version(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(BrokerRequestHeader)
        theirs = decode_json(_body(request, MAX_VERSION_BYTES), DataVersion) if request.body else None
        ours = self._table.data_version(header.cluster_name, header.broker_addr)
        self._table.heartbeat(header.cluster_name, header.broker_addr, _now_ms())
        return _response(
            header=QueryDataVersionResponseHeader(changed=ours is None or ours != theirs),
            body=encode_json(ours) if ours is not None else b"",
        )

    # -- administration -----------------------------------------------------------------------------------------

    def _wipe_write_perm(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name = request.read_header(BrokerNameRequestHeader).broker_name
        count = self._table.wipe_write_perm(name)
        log.info("%s wiped the write permission of broker %s, %d topics", connection.address, name, count)
        return _response(header=WipeWritePermResponseHeader(wipe_topic_count=count))

    def _add_write_perm(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        name = request.read_header(BrokerNameRequestHeader).broker_name
        count = self._table.add_write_perm(name)
        log.info("%s added the write permission of broker %s, %d topics", connection.address, name, count)
        return _response(header=AddWritePermResponseHeader(add_topic_count=count))

    def _register_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = request.read_header(TopicRequestHeader).topic
        if request.body:
            queues = decode_json(_body(request, MAX_ROUTE_BYTES), TopicRouteData).queue_datas
            for q in queues:
                check_queues(topic, q.read_queue_nums, q.write_queue_nums, q.perm, q.topic_sys_flag)
            self._table.register_topic(topic, queues)
        return _response()

    def _delete_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(DeleteTopicInNamesrvRequestHeader)
        self._table.delete_topic(header.topic, header.cluster_name)
        log.info("%s deleted topic %s of cluster %s", connection.address, header.topic, header.cluster_name or "any")
        return _response()

    def _put_kv_config(self, connection: Connection, request: RemotingCommand) -> None:
        header = request.read_header(PutKVConfigRequestHeader)

        async def put() -> RemotingCommand:
            await self._kv_config.put(header.namespace, header.key, header.value)
            log.info("%s set KV config %s/%s", connection.address, header.namespace, header.key)
            return _response()

        connection.respond_with(request, put())

    def _get_kv_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(KVConfigRequestHeader)
        if header.namespace == lost_brokers.NAMESPACE:
            value = self._table.lost.of(header.key)
        else:
            value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            return _response(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace} Key: {header.key}"
            )
        return _response(header=GetKVConfigResponseHeader(value=value))

    def _delete_kv_config(self, connection: Connection, request: RemotingCommand) -> None:
        header = request.read_header(KVConfigRequestHeader)

        async def delete() -> RemotingCommand:
            if header.namespace == lost_brokers.NAMESPACE:
                self._table.lost.forget(header.key)
            else:
                await self._kv_config.delete(header.namespace, header.key)
            log.info("%s deleted KV config %s/%s", connection.address, header.namespace, header.key)
            return _response()

        connection.respond_with(request, delete())

    def _get_kv_list(self, connection: Connection, request: RemotingCommand) -> Reply:
        namespace = request.read_header(GetKVListByNamespaceRequestHeader).namespace
        if namespace == lost_brokers.NAMESPACE:
            return self._long_requests.run(connection, request, self._lost_brokers())
        table = self._kv_config.namespace(namespace)
        if table is None:
            return _response(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return _response(body=encode_body(KVTable(table)))

    def _lost_brokers(self) -> Generator[None, None, Reply]:
        return _response(body=(yield from self._table.lost.encode_in_steps()))

    def _update_config(self, connection: Connection, request: RemotingCommand) -> None:
        source = f"UPDATE_NAMESRV_CONFIG of {connection.address}"

        async def update() -> RemotingCommand:
            await self._changes.make(lambda: self._configuration.changed(request.body, source))
            self._table.forget_answers()
            return _response()

        connection.respond_with(request, update())

    def _get_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        # The body is the configuration, as in Java. `gantry doctor` reads job failures from the header.
        body = format_properties(self._configuration.properties()).encode()
        return RemotingCommand.response(body=body, fields=failure_fields(self._jobs))


def _now_ms() -> int:
    return int(monotonic() * 1000)


def _body(request: RemotingCommand, most: int) -> bytes:
    if len(request.body) > most:
        raise BodyError(f"body of {len(request.body)} bytes: larger than {most} bytes")
    return request.body


def _listed(topics: TopicList) -> RemotingCommand:
    return _response(body=encode_body(topics))


def _narrowed(route: TopicRouteData, zone_name: str | None, order: str | None) -> TopicRouteData:
    route.order_topic_conf = order
    return in_zone(route, zone_name) if zone_name else route
