"""The state of a NameServer: live brokers, their topics, and the resulting routes.

No I/O, no clock. The rules are Java's (namesrv/routeinfo/RouteInfoManager):

- A broker is identified by its name and id, and has an address in a cluster. The lowest id of a name leads. 0 is the
  master.
- Topics come from the master, or from the leading slave if it sends enableActingMaster.
- If the data version of a registration is unchanged, only topics that the table lacks are added.
- A broker is removed if it unregisters, if the connection of its last registration closes, or if it is silent for its
  heartbeat timeout. With the last broker of a name, its queues are removed. A topic is removed with its last queue.

An encoded route is cached until a broker changes. Topics with the same queues share it (`topic_table`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Iterable
from itertools import islice
from typing import Any

from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.namesrv.brokers import (
    LiveBroker,
    MinBrokerIdChange,
    Registered,
    identity,
    min_broker_id_change,
    with_acting_master,
)
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.lost_brokers import LostBrokers
from gantrymq.namesrv.responses import encode_body
from gantrymq.namesrv.topic_table import BrokerQueues, TopicQueues, TopicTable
from gantrymq.protocol.bodies.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE, DataVersion, RegisterBrokerBody, TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.headers.namesrv import BrokerRequestHeader, RegisterBrokerRequestHeader
from gantrymq.protocol.steps import finish

log = peer_log(__name__)

#: Timeout of a broker that sends no heartbeat timeout, in milliseconds (DEFAULT_BROKER_CHANNEL_EXPIRED_TIME).
DEFAULT_HEARTBEAT_TIMEOUT_MS = 120_000
#: Routes of topics with this prefix show no acting master (TopicValidator.SYNC_BROKER_MEMBER_GROUP_PREFIX).
SYNC_MEMBER_GROUP_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"

#: Maximum number of brokers, and of topics in total. Otherwise forged registrations could fill the memory and slow down
#: loops.
MAX_BROKERS = 2_000
MAX_TOPICS = 500_000
#: Number of topics that one step adds.
_STEP_TOPICS = 1_000

#: Flags of topicSysFlag: the topic belongs to a unit; units subscribe to the topic (common/sysflag/TopicSysFlag).
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2


class RouteTable:
    """The tables of a NameServer. Times are milliseconds of any monotonic clock. Connections are only compared."""

    def __init__(self, config: NamesrvConfig) -> None:
        self._config = config
        self._topics = TopicTable()
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}
        #: Brokers by the connection of their last registration.
        self._keys_of: defaultdict[object, set[tuple[str, str]]] = defaultdict(set)
        self._filter_servers: dict[tuple[str, str], list[str]] = {}
        #: Static topics: topic -> broker name -> TopicQueueMappingInfo.
        self._mappings: dict[str, dict[str, dict[str, Any]]] = {}
        self.lost = LostBrokers()

    # -- brokers come -------------------------------------------------------------------------------------------

    def register(
        self,
        header: RegisterBrokerRequestHeader,
        body: RegisterBrokerBody,
        *,
        zone_name: str | None,
        connection: object,
        now_ms: int,
    ) -> Registered:
        """Runs `register_in_steps` without pauses."""
        return finish(self.register_in_steps(header, body, zone_name=zone_name, connection=connection, now_ms=now_ms))

    def register_in_steps(
        self,
        header: RegisterBrokerRequestHeader,
        body: RegisterBrokerBody,
        *,
        zone_name: str | None,
        connection: object,
        now_ms: int,
    ) -> Generator[None, None, Registered]:
        """Adds or updates a broker at once, and its topics in steps. The result is the same as in one step.

        If the broker is removed or registers again before the last step, the rest of its topics is skipped.

        Raises:
            RequestRefused: An unknown broker registers a single topic, or there are too many brokers or topics.
        """
        name, broker_id, address = header.broker_name, header.broker_id, header.broker_addr
        table = body.topic_config_serialize_wrapper
        key = (header.cluster_name, address)
        broker = self._brokers.get(name)
        if (broker is None or broker_id not in broker.broker_addrs) and len(table.topic_config_table) == 1:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"register broker failed: {name} ({broker_id}) at {address} must register all topics before one alone",
            )
        self._check_limits(key, table.topic_config_table)
        renamed = self._live.get(key)
        if renamed is not None and renamed.broker_name != name:
            # Java would keep the address under both names, and never remove the old entry.
            self.unregister([identity(key, renamed)])
        if broker is None:
            log.info("new broker %s of cluster %s at %s", name, header.cluster_name, address)
            broker = self._brokers[name] = BrokerData(header.cluster_name, name, {})
        self._clusters.setdefault(header.cluster_name, set()).add(name)
        addresses = broker.broker_addrs
        before = (dict(addresses), broker.zone_name, broker.enable_acting_master)
        broker.enable_acting_master = bool(header.enable_acting_master)
        broker.zone_name = zone_name
        min_id_changed = bool(addresses) and broker_id < min(addresses)

        # An address has one id. If a slave became master, its old id is removed.
        for other_id in [i for i, a in addresses.items() if a == address and i != broker_id]:
            del addresses[other_id]
        old_address = addresses.get(broker_id)
        if old_address is not None and old_address != address:
            rival = self._live.get((header.cluster_name, old_address))
            if rival is not None and rival.data_version.state_version > table.data_version.state_version:
                log.warning(
                    "ignoring broker %s (%d) at %s: %s has the same id and a newer state (%d > %d)",
                    *(name, broker_id, address, old_address),
                    *(rival.data_version.state_version, table.data_version.state_version),
                )
                self._forget_live(key)
                self._broker_changed(broker, before)
                return Registered()
        addresses[broker_id] = address

        leads = broker_id == MASTER_ID or (header.enable_acting_master is not None and broker_id == min(addresses))
        changed = not old_address or self.data_version(*key) != table.data_version
        timeout_ms = header.heartbeat_timeout_millis
        if timeout_ms is None:
            timeout_ms = DEFAULT_HEARTBEAT_TIMEOUT_MS
        self._forget_live(key)
        self._live[key] = live = LiveBroker(
            name, broker_id, now_ms, timeout_ms, table.data_version, connection, header.ha_server_addr
        )
        self._keys_of[connection].add(key)
        self._set_filter_servers(key, body.filter_server_list)
        self._broker_changed(broker, before)
        if leads:
            for _ in self._take_topics(header, body, changed=changed):
                yield
                if self._live.get(key) is not live:
                    return Registered()

        master_address = broker.master_address if broker_id != MASTER_ID else None
        master = self._live.get((header.cluster_name, master_address)) if master_address else None
        change = None
        if min_id_changed and self._config.notify_min_broker_id_changed:
            change = min_broker_id_change(broker, None, header.ha_server_addr)
        if master is None:
            return Registered(min_broker_id_change=change)
        return Registered(master.ha_server_addr, master_address, change)

    def heartbeat(self, cluster_name: str, broker_addr: str, now_ms: int) -> None:
        """Records a heartbeat of the broker at this address. Ignores an unknown broker, which must register first."""
        live = self._live.get((cluster_name, broker_addr))
        if live is not None:
            live.last_update_ms = now_ms

    def data_version(self, cluster_name: str, broker_addr: str) -> DataVersion | None:
        """Returns the version of the topics that the broker at this address last registered, or None."""
        live = self._live.get((cluster_name, broker_addr))
        return live.data_version if live is not None else None

    def _check_limits(self, key: tuple[str, str], topics: Collection[str]) -> None:
        if key not in self._live and len(self._live) >= MAX_BROKERS:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"register broker failed: {MAX_BROKERS} brokers are there")
        if len(self._topics) + len(topics) > MAX_TOPICS:
            count = len(self._topics) + sum(self._topics.get(topic) is None for topic in topics)
            if count > MAX_TOPICS:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"register broker failed: more than {MAX_TOPICS} topics"
                )

    def _forget_live(self, key: tuple[str, str]) -> LiveBroker | None:
        live = self._live.pop(key, None)
        if live is not None:
            keys = self._keys_of[live.connection]
            keys.discard(key)
            if not keys:
                del self._keys_of[live.connection]
        return live

    def _take_topics(
        self, header: RegisterBrokerRequestHeader, body: RegisterBrokerBody, *, changed: bool
    ) -> Generator[None, None, None]:
        table = body.topic_config_serialize_wrapper
        # Reuses the existing string, because the queues of all topics refer to it.
        name = self._brokers[header.broker_name].broker_name
        topics, mappings = table.topic_config_table, table.topic_queue_mapping_info_map
        if changed:
            for topic, mapping in mappings.items():
                self._mappings.setdefault(topic, {})[str(mapping.get("bname"))] = mapping
        if self._config.delete_topic_with_broker_registration and not mappings:
            self._take_queues([topic for topic in self._topics.names_of([name]) if topic not in topics], [name])
        # A leading slave is only an acting master: its topics are readable but not writable.
        perm_mask = ~PERM_WRITE if header.broker_id != MASTER_ID and header.enable_acting_master else ~0
        has_queues = self._topics.asks_for(name)
        configs = iter(topics.values())
        while some := list(islice(configs, _STEP_TOPICS)):
            self._topics.put(
                (config.topic_name, _broker_queues(name, config, perm_mask))
                for config in some
                if changed or not has_queues(config.topic_name)
            )
            self.lost.returned(name, (config.topic_name for config in some))
            yield

    def _set_filter_servers(self, key: tuple[str, str], servers: list[str] | None) -> None:
        # A broker that is too old for filter servers sends None. An empty list removes the existing filter servers.
        if servers is not None and servers != self._filter_servers.get(key, []):
            if servers:
                self._filter_servers[key] = servers
            else:
                del self._filter_servers[key]
            self.forget_answers()

    def _broker_changed(self, broker: BrokerData, before: tuple[dict[int, str], str | None, bool]) -> None:
        if before != (broker.broker_addrs, broker.zone_name, broker.enable_acting_master):
            self.forget_answers()

    # -- brokers go ---------------------------------------------------------------------------------------------

    def unregister(self, requests: Iterable[BrokerRequestHeader]) -> list[MinBrokerIdChange]:
        """Removes brokers and returns the notifications to send. Ignores unknown brokers.

        If no broker of a name is left, the name is added to `lost`. This includes brokers that were stopped regularly,
        because they may only be restarting.
        """
        removed: dict[str, str] = {}
        reduced: dict[str, BrokerData] = {}
        offline: dict[str, str] = {}
        for request in requests:
            name, address = request.broker_name, request.broker_addr
            key = (request.cluster_name, address)
            if self._forget_live(key) is not None:
                log.info("broker %s of cluster %s at %s is gone", name, request.cluster_name, address)
            self._filter_servers.pop(key, None)
            broker = self._brokers.get(name)
            if broker is None:
                continue
            ids = [i for i, a in broker.broker_addrs.items() if a == address]
            if ids and min(ids) == min(broker.broker_addrs):
                offline[name] = address
            for broker_id in ids:
                del broker.broker_addrs[broker_id]
            if broker.broker_addrs:
                reduced[name] = broker
            else:
                del self._brokers[name]
                removed[name] = broker.cluster
        # One pass over all topics, regardless of the number of removed brokers.
        if removed:
            self._remove_names(set(removed))
            topics = self._topics.names_of(removed)
            for name, of_name in self._topics.grouped(topics, removed).items():
                self.lost.lose(name, removed[name], of_name)
            self._take_queues(topics, removed)
        led_by_slave = {
            name
            for name, broker in reduced.items()
            if name not in removed and broker.enable_acting_master and MASTER_ID not in broker.broker_addrs
        }
        if led_by_slave:
            self._topics.set_perm(led_by_slave, lambda perm: perm & ~PERM_WRITE)
        self.forget_answers()
        if not self._config.notify_min_broker_id_changed:
            return []
        return [
            min_broker_id_change(self._brokers[name], address, None)
            for name, address in offline.items()
            if name in self._brokers and self._brokers[name].enable_acting_master
        ]

    def has_registered(self, connection: object) -> bool:
        """Returns true if the last registration of any broker used this connection."""
        return connection in self._keys_of

    def connections_closed(self, connections: Iterable[object]) -> list[MinBrokerIdChange]:
        """Removes the brokers whose last registration used one of these connections. Returns notifications to send."""
        gone = [
            identity(key, self._live[key])
            for connection in connections
            if connection in self._keys_of
            for key in self._keys_of[connection]
        ]
        return self.unregister(gone) if gone else []

    def expire(self, now_ms: int) -> tuple[list[object], list[MinBrokerIdChange]]:
        """Removes silent brokers. Returns their connections, which must be closed, and the notifications to send."""
        self.lost.forget_old(now_ms)
        silent = [
            (key, live) for key, live in self._live.items() if live.last_update_ms + live.heartbeat_timeout_ms < now_ms
        ]
        for (cluster_name, address), live in silent:
            log.warning(
                "broker %s of cluster %s at %s was silent for %d ms",
                *(live.broker_name, cluster_name, address, now_ms - live.last_update_ms),
            )
        if not silent:
            return [], []
        gone = [identity(*entry) for entry in silent]
        return [live.connection for _, live in silent], self.unregister(gone)

    def _remove_names(self, removed: set[str]) -> None:
        for cluster_name, names in list(self._clusters.items()):
            names -= removed
            if not names:
                del self._clusters[cluster_name]

    def _take_queues(self, topics: list[str], broker_names: Iterable[str]) -> None:
        for topic in self._topics.take(topics, broker_names):
            self._mappings.pop(topic, None)

    # -- topics -------------------------------------------------------------------------------------------------

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Adds or replaces queues on request of an administrator. Does nothing if a broker is unknown."""
        known = [
            BrokerQueues(q.broker_name, q.read_queue_nums, q.write_queue_nums, q.perm, q.topic_sys_flag) for q in queues
        ]
        if not known or any(q.broker_name not in self._brokers for q in known):
            log.warning("topic %s not registered: brokers %s", topic, [q.broker_name for q in known])
            return
        self._topics.put((topic, broker_queues) for broker_queues in known)

    def delete_topic(self, topic: str, cluster_name: str | None = None) -> None:
        """Removes a topic from the brokers of one cluster, or everywhere."""
        self.lost.forget_topic(topic, cluster_name)
        if self._topics.get(topic) is None:
            return
        if cluster_name:
            self._take_queues([topic], self._clusters.get(cluster_name, ()))
        else:
            self._topics.remove(topic)
            self._mappings.pop(topic, None)

    def wipe_write_perm(self, broker_name: str) -> int:
        """Makes all topics of a broker read-only until it registers a new data version. Returns their number."""
        return self._topics.set_perm([broker_name], lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Makes all topics of a broker readable and writable. Returns the number of topics."""
        return self._topics.set_perm([broker_name], lambda _: PERM_READ | PERM_WRITE)

    # -- queries ------------------------------------------------------------------------------------------------

    def encoded_route(self, topic: str) -> bytes | None:
        """Returns the route as a response body, or None for an unknown topic. Topics with equal queues share it."""
        queues = self._topics.get(topic)
        if queues is None:
            return None
        # A route that depends on the topic itself can't be shared.
        sharable = topic not in self._mappings and not topic.startswith(SYNC_MEMBER_GROUP_PREFIX)
        if sharable and queues.encoded_route is not None:
            return queues.encoded_route
        route = self.route(topic)
        encoded = encode_body(route) if route is not None else None
        if sharable:
            queues.encoded_route = encoded
        return encoded

    def route(self, topic: str) -> TopicRouteData | None:
        """Returns the route of a topic, or None if no broker has it."""
        queues = self._topics.get(topic)
        if queues is None:
            return None
        brokers = [self._brokers[q.broker_name] for q in queues.queues if q.broker_name in self._brokers]
        if not brokers:
            return None
        if self._config.support_acting_master and not topic.startswith(SYNC_MEMBER_GROUP_PREFIX):
            brokers = [with_acting_master(broker, queues) for broker in brokers]
        filter_servers = {
            address: self._filter_servers[broker.cluster, address]
            for broker in brokers
            for address in broker.broker_addrs.values()
            if (broker.cluster, address) in self._filter_servers
        }
        return TopicRouteData(
            [QueueData(*q) for q in queues.queues],
            brokers,
            filter_servers,
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )

    def forget_answers(self) -> None:
        """Discards all cached routes, after a change that can affect every route."""
        self._topics.forget_encoded_routes()

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(self._brokers, {cluster: sorted(names) for cluster, names in self._clusters.items()})

    def broker_addresses(self, broker_name: str) -> dict[int, str]:
        """Returns the addresses of a broker name by broker id."""
        broker = self._brokers.get(broker_name)
        return dict(broker.broker_addrs) if broker is not None else {}

    @property
    def revision(self) -> int:
        """A number that increases when topics of a broker or lost brokers change."""
        return self._topics.revision + self.lost.revision

    def copy_of_topics(self) -> dict[str, TopicQueues]:
        """Returns each topic with its queues. The queues are immutable, so another thread can read them."""
        return self._topics.copy()

    def clusters_of_brokers(self) -> dict[str, str]:
        """Returns {broker name: cluster name} of the registered brokers."""
        return {name: broker.cluster for name, broker in self._brokers.items()}

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def all_topics(self) -> TopicList:
        return TopicList(self._topics.names())

    def topics_of_cluster(self, cluster_name: str) -> TopicList:
        return TopicList(self._topics.names_of(self._clusters.get(cluster_name, set())))

    def system_topics(self) -> TopicList:
        """Returns the names of clusters and brokers, which are also topics, and the address of any broker."""
        names = {name: None for cluster, brokers in self._clusters.items() for name in (cluster, *sorted(brokers))}
        addresses = (address for broker in self._brokers.values() for address in broker.broker_addrs.values())
        return TopicList(list(names), next(addresses, None))

    def unit_topics(self) -> TopicList:
        return TopicList(self._topics.names_where(lambda queues: bool(_flags(queues) & UNIT_FLAG)))

    def unit_sub_topics(self) -> TopicList:
        return TopicList(self._topics.names_where(lambda queues: bool(_flags(queues) & UNIT_SUB_FLAG)))

    def unit_sub_ununit_topics(self) -> TopicList:
        """Returns the topics that units subscribe to but that do not belong to a unit."""
        both = UNIT_FLAG | UNIT_SUB_FLAG
        return TopicList(self._topics.names_where(lambda queues: _flags(queues) & both == UNIT_SUB_FLAG))


def _broker_queues(name: str, config: TopicConfig, perm_mask: int) -> BrokerQueues:
    return BrokerQueues(
        name, config.read_queue_nums, config.write_queue_nums, config.perm & perm_mask, config.topic_sys_flag
    )


def _flags(queues: TopicQueues) -> int:
    return queues.queues[0].topic_sys_flag
