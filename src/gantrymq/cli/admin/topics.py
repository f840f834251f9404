"""mqadmin's commands for topics. Source: tools/command/topic/*."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gantrymq.cli.admin.command import Broker, Cluster, Topic, command
from gantrymq.cli.admin.confirmation import Confirmation
from gantrymq.cli.admin.output import Output, Table, human_time, listing
from gantrymq.cli.admin.values import TrueFalse, one_target, parse_attributes, read_json
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.rebalance import allocate_averagely
from gantrymq.client.routes import read_queues
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

app = new_app()

#: Bits of `TopicSysFlag`.
_UNIT = 1
_UNIT_SUB = 2

Permission = Annotated[int, typer.Option("-p", "--perm", min=0, max=7, help="2: write, 4: read, 6: both.")]


@command(app, "updateTopic")
async def update_topic(
    admin: AdminClient,
    topic: Topic,
    cluster: Cluster = None,
    broker: Broker = None,
    attributes: Annotated[str, typer.Option("-a", "--attributes", help="+name=value,-name")] = "",
    read_queue_nums: Annotated[int, typer.Option("-r", "--readQueueNums", min=1, help="Queues to read.")] = 8,
    write_queue_nums: Annotated[
        int, typer.Option("-w", "--writeQueueNums", min=0, help="Queues to write; 0 drains the topic.")
    ] = 8,
    perm: Permission = 6,
    order: Annotated[TrueFalse, typer.Option("-o", "--order", help="Ordered over all queues.")] = TrueFalse.FALSE,
    unit: Annotated[TrueFalse, typer.Option("-u", "--unit", help="A unit topic.")] = TrueFalse.FALSE,
    has_unit_sub: Annotated[TrueFalse, typer.Option("-s", "--hasUnitSub", help="Has a unit's readers.")] = (
        TrueFalse.FALSE
    ),
) -> Output:
    """Update or create topic."""
    one_target(cluster, broker)
    config = TopicConfig(
        topic,
        read_queue_nums,
        write_queue_nums,
        perm,
        topic_sys_flag=(_UNIT if unit else 0) | (_UNIT_SUB if has_unit_sub else 0),
        order=bool(order),
        attributes=parse_attributes(attributes),
    )
    addresses = await admin.create_topic(config, cluster=cluster, broker=broker)
    lines = [f"create topic to {address} success." for address in addresses]
    order_conf = None
    if order:
        order_conf = await _set_order(admin, config, cluster, addresses[0])
        lines.append(f"set orderConf. orderConf=[{order_conf}]")
    return Output({"topicConfig": config, "brokers": addresses, "orderConf": order_conf}, lines)


@command(app, "updateTopicList")
async def update_topic_list(
    admin: AdminClient,
    file: Annotated[Path, typer.Option("-f", "--filename", help="A JSON list of TopicConfig objects.")],
    cluster: Cluster = None,
    broker: Broker = None,
) -> Output:
    """Create or update topics in batch."""
    one_target(cluster, broker)
    configs = read_json(file, list[TopicConfig])
    addresses = await admin.create_topics(configs, cluster=cluster, broker=broker)
    topics = [config.topic_name for config in configs]
    return Output(
        {"topics": topics, "brokers": addresses},
        [f"create {len(topics)} topics to {address} success." for address in addresses],
    )


@command(app, "deleteTopic")
async def delete_topic(
    admin: AdminClient,
    topic: Topic,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="From every master of this cluster.")],
    confirmation: Confirmation,
) -> Output:
    """Delete topic from broker and NameServer."""
    servers = [*await admin.masters_of(cluster), *admin.name_servers]
    if plan := await confirmation.check(f"delete topic {topic!r} of cluster {cluster!r}", servers):
        return plan
    addresses = await admin.delete_topic(topic, cluster)
    return Output(
        {"topic": topic, "cluster": cluster, "brokers": addresses},
        [
            f"delete topic [{topic}] from cluster [{cluster}] success.",
            f"delete topic [{topic}] from NameServer success.",
        ],
    )


@command(app, "updateTopicPerm")
async def update_topic_perm(
    admin: AdminClient, topic: Topic, perm: Permission, cluster: Cluster = None, broker: Broker = None
) -> Output:
    """Update topic perm."""
    one_target(cluster, broker)
    old = await admin.update_topic_perm(topic, perm, cluster=cluster, broker=broker)
    return Output(
        {"topic": topic, "perm": perm, "brokers": [{"brokerAddr": a, "oldPerm": p} for a, p in old.items()]},
        [f"update topic perm from {before} to {perm} in {address} success." for address, before in old.items()],
    )


@command(app, "topicRoute")
async def topic_route(
    admin: AdminClient,
    topic: Topic,
    as_list: Annotated[bool, typer.Option("-l", "--list", help="The table, as without it; mqadmin prints JSON.")] = (
        False
    ),
) -> Output:
    """Examine topic route info."""
    route = await admin.topic_route(topic)
    brokers = {broker.broker_name: broker for broker in route.broker_datas}
    queues = sorted(route.queue_datas, key=lambda data: data.broker_name)
    rows = [
        [
            brokers[data.broker_name].cluster,
            data.broker_name,
            ", ".join(f"{number}: {address}" for number, address in brokers[data.broker_name].broker_addrs.items()),
            data.read_queue_nums,
            data.write_queue_nums,
            data.perm,
        ]
        for data in queues
        if data.broker_name in brokers
    ]
    headings = ["Cluster Name", "Broker Name", "Broker Addrs", "Read Queue", "Write Queue", "Perm"]
    read, write = sum(data.read_queue_nums for data in queues), sum(data.write_queue_nums for data in queues)
    total = f"Total: {len(queues)} brokers, {read} read queues, {write} write queues"
    return Output(route, [Table(headings, rows), total])


@command(app, "topicStatus")
async def topic_status(
    admin: AdminClient,
    topic: Topic,
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="Only this cluster's brokers.")] = None,
) -> Output:
    """Examine topic status info."""
    stats = await admin.topic_stats(topic)
    names = {broker.broker_name for broker in await admin.brokers_of(cluster)} if cluster else None
    rows = [
        {
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "minOffset": offset.min_offset,
            "maxOffset": offset.max_offset,
            "lastUpdateTimestamp": offset.last_update_timestamp,
        }
        for queue, offset in sorted(stats.offset_table.items())
        if names is None or queue.broker_name in names
    ]
    shown = listing(
        rows,
        {
            "brokerName": "Broker Name",
            "queueId": "QID",
            "minOffset": "Min Offset",
            "maxOffset": "Max Offset",
            "lastUpdateTimestamp": ("Last Updated", human_time),
        },
        f"Topic Put TPS: {stats.topic_put_tps}",
    )
    return Output({"queues": rows, "topicPutTps": stats.topic_put_tps}, shown.parts)


@command(app, "topicClusterList")
async def topic_cluster_list(admin: AdminClient, topic: Topic) -> Output:
    """Get cluster info for topic."""
    clusters = await admin.clusters_of_topic(topic)
    return Output(clusters, clusters)


@command(app, "topicList")
async def topic_list(
    admin: AdminClient,
    cluster_model: Annotated[
        bool,
        typer.Option("-c", "--clusterModel", help="Also print the clusters and the consumer groups of each topic."),
    ] = False,
) -> Output:
    """List all topics of the NameServers."""
    topics = await admin.topic_list()
    if not cluster_model:
        return Output(topics, topics)
    rows = []
    for topic in topics:
        if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            continue
        try:
            clusters = await admin.clusters_of_topic(topic)
            groups = await admin.groups_of_topic(topic)
        except GantryError:
            # A topic whose brokers are down has neither clusters nor groups.
            clusters, groups = [], []
        rows.append({"topic": topic, "clusters": clusters, "consumerGroups": groups})
    return listing(
        rows,
        {
            "clusters": ("Cluster Name", ", ".join),
            "topic": "Topic",
            "consumerGroups": ("Consumer Group", ", ".join),
        },
    )


@command(app, "updateOrderConf")
async def update_order_conf(
    admin: AdminClient,
    topic: Topic,
    method: Annotated[str, typer.Option("-m", "--method", help="put, get or delete.")],
    confirmation: Confirmation,
    order_conf: Annotated[str, typer.Option("-v", "--orderConf", help="broker-a:8;broker-b:8")] = "",
) -> Output:
    """Create or update or delete order conf."""
    if method == "get":
        order_conf = await admin.order_conf(topic) or ""
    elif method == "put":
        if not order_conf:
            raise typer.BadParameter("put needs it", param_hint="'-v' / '--orderConf'")
        action = f"set the order configuration of topic {topic!r} to {order_conf!r}"
        # This change neither deletes nor resets, so it needs no confirmation.
        if confirmation.dry_run and (plan := await confirmation.check(action, admin.name_servers)):
            return plan
        await admin.put_order_conf(topic, order_conf)
    elif method == "delete":
        if plan := await confirmation.check(f"delete the order configuration of topic {topic!r}", admin.name_servers):
            return plan
        await admin.delete_order_conf(topic)
        order_conf = ""
    else:
        raise typer.BadParameter("put, get or delete", param_hint="'-m' / '--method'")
    return Output(
        {"topic": topic, "orderConf": order_conf},
        [f"{method} orderConf success. topic=[{topic}], orderConf=[{order_conf}]"],
    )


@command(app, "allocateMQ")
async def allocate_mq(
    admin: AdminClient,
    topic: Topic,
    ip_list: Annotated[str, typer.Option("-i", "--ipList", help="Consumers' addresses, separated by commas.")],
) -> Output:
    """Allocate MQ: which consumer would have which queues."""
    queues = read_queues(topic, await admin.topic_route(topic))
    consumers = ip_list.split(",")
    rows = [
        {"ip": ip, "brokerName": queue.broker_name, "queueId": queue.queue_id}
        for ip in consumers
        for queue in allocate_averagely(ip, consumers, queues)
    ]
    return listing(rows, {"ip": "Consumer", "brokerName": "Broker Name", "queueId": "QID"})


async def _set_order(admin: AdminClient, config: TopicConfig, cluster: str | None, address: str) -> str:
    if cluster is not None:
        names = [broker.broker_name for broker in await admin.brokers_of(cluster)]
        order_conf = ";".join(f"{name}:{config.write_queue_nums}" for name in names)
        await admin.put_order_conf(config.topic_name, order_conf)
        return order_conf
    for broker in (await admin.cluster_info()).broker_addr_table.values():
        if address in broker.broker_addrs.values():
            return await admin.merge_order_conf(config.topic_name, broker.broker_name, config.write_queue_nums)
    raise typer.BadParameter(f"no NameServer knows {address}", param_hint="'-b' / '--brokerAddr'")
