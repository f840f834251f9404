"""mqadmin's commands that write a cluster's data into JSON files. Source: tools/command/export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gantrymq.cli.admin.brokers import first_rate, number_of
from gantrymq.cli.admin.command import Broker, Cluster, command
from gantrymq.cli.admin.output import Output
from gantrymq.cli.admin.stats import TOPIC_PUT_NUMS, messages_of_day
from gantrymq.cli.admin.values import one_target
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import BrokerError, ClientError
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import PROTOCOL_VERSION, ResponseCode
from gantrymq.protocol.topic_name import (
    DLQ_TOPIC_PREFIX,
    PREDEFINED_GROUPS,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_GROUP_PREFIX,
    TRANSACTION_HALF_TOPIC,
    is_system_topic,
)
from gantrymq.protocol.version_name import version_name
from gantrymq.system.clock import now_ms

app = new_app()

#: The keys of brokers that exportConfigs writes.
_CONFIG_KEYS = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)

OneCluster = Annotated[str, typer.Option("-c", "--clusterName", help="The masters of this cluster.")]
Directory = Annotated[Path, typer.Option("-f", "--filePath", help="Directory of the file. It is created.")]
DEFAULT_DIRECTORY = Path("/tmp/rocketmq/export")


@command(app, "exportConfigs")
async def export_configs(admin: AdminClient, cluster: OneCluster, directory: Directory = DEFAULT_DIRECTORY) -> Output:
    """Export configs."""
    brokers = await admin.brokers_of(cluster)
    configs = {}
    for broker in brokers:
        if broker.master_address:
            config = await admin.broker_config(broker.master_address)
            configs[broker.broker_name] = {key: config[key] for key in _CONFIG_KEYS if key in config}
    scale = {
        "namesrvSize": len(admin.name_servers),
        "masterBrokerSize": len(configs),
        "slaveBrokerSize": sum(number != 0 for broker in brokers for number in broker.broker_addrs),
    }
    return _written(directory / "configs.json", {"brokerConfigs": configs, "clusterScale": scale})


@command(app, "exportMetadata")
async def export_metadata(
    admin: AdminClient,
    cluster: Cluster = None,
    broker: Broker = None,
    directory: Directory = DEFAULT_DIRECTORY,
    only_topics: Annotated[bool, typer.Option("-t", "--topic", help="Only topics, in topic.json.")] = False,
    only_groups: Annotated[
        bool, typer.Option("-g", "--subscriptionGroup", help="Only groups, in subscriptionGroup.json.")
    ] = False,
    special_topics: Annotated[bool, typer.Option("-s", "--specialTopic", help="Also retry and DLQ topics.")] = False,
) -> Output:
    """Export metadata."""
    one_target(cluster, broker)
    addresses = [broker] if broker else await admin.masters_of(cluster or "")
    document: dict[str, Any] = {}
    name = "metadata.json"
    if only_topics or not only_groups:
        document["topicConfigTable"] = await _all_topics(admin, addresses, special=special_topics)
        name = "topic.json" if only_topics else name
    if not only_topics:
        document["subscriptionGroupTable"] = await _all_groups(admin, addresses)
        name = "subscriptionGroup.json" if only_groups else name
    return _written(directory / name, document | {"exportTime": now_ms()})


@command(app, "exportMetrics")
async def export_metrics(admin: AdminClient, cluster: OneCluster, directory: Directory = DEFAULT_DIRECTORY) -> Output:
    """Export metrics."""
    report = {
        broker.broker_name: await _evaluation(admin, broker.master_address)
        for broker in await admin.brokers_of(cluster)
        if broker.master_address
    }
    quotas = [one["runtimeQuota"] for one in report.values()]
    total_tps = {
        "total" + key[0].upper() + key[1:]: sum(quota["tps"][key] for quota in quotas)
        for key in ("normalInTps", "normalOutTps", "transInTps", "scheduleInTps")
    }
    total_day = {
        key: sum(quota["oneDayNum"][key] for quota in quotas)
        for key in ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum")
    }
    totals = {"totalTps": total_tps, "totalOneDayNum": total_day}
    return _written(directory / "metrics.json", {"evaluateReport": report, "totalData": totals})


async def _all_topics(admin: AdminClient, addresses: list[str], *, special: bool) -> dict[str, TopicConfig]:
    """Returns the users' topics of all brokers. Numbers of queues are summed over the brokers."""
    found: dict[str, TopicConfig] = {}
    for address in addresses:
        for name, config in (await _user_topics(admin, address, special=special)).items():
            if (earlier := found.get(name)) is not None:
                config.read_queue_nums += earlier.read_queue_nums
                config.write_queue_nums += earlier.write_queue_nums
            found[name] = config
    return found


async def _user_topics(admin: AdminClient, address: str, *, special: bool) -> dict[str, TopicConfig]:
    """Returns the topics of one broker without system topics and, unless `special`, without retry and DLQ topics."""
    system_topics = set(await admin.system_topics(address))
    return {
        name: config
        for name, config in (await admin.topic_configs(address)).items()
        if name not in system_topics
        and not is_system_topic(name)
        and (special or not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)))
    }


async def _all_groups(admin: AdminClient, addresses: list[str]) -> dict[str, SubscriptionGroupConfig]:
    """Returns the users' groups of all brokers. Numbers of retry queues are summed over the brokers."""
    found: dict[str, SubscriptionGroupConfig] = {}
    for address in addresses:
        for name, config in (await _user_groups(admin, address)).items():
            if (earlier := found.get(name)) is not None:
                config.retry_queue_nums += earlier.retry_queue_nums
            found[name] = config
    return found


async def _user_groups(admin: AdminClient, address: str) -> dict[str, SubscriptionGroupConfig]:
    return {
        name: config
        for name, config in (await admin.group_configs(address)).items()
        if name not in PREDEFINED_GROUPS and not name.startswith(SYSTEM_GROUP_PREFIX)
    }


async def _evaluation(admin: AdminClient, address: str) -> dict[str, dict[str, Any]]:
    """Returns the metrics of one broker."""
    info, config = await admin.runtime_info(address), await admin.broker_config(address)
    topics, groups = await _user_topics(admin, address, special=False), await _user_groups(admin, address)
    half_tps, half_messages = await _sends(admin, address, TRANSACTION_HALF_TOPIC)
    delayed_tps, delayed_messages = await _sends(admin, address, SCHEDULE_TOPIC)
    # Only Java's brokers have this key. Its default is their number of processors.
    processors = config.get("clientCallbackExecutorThreads")
    quota = {
        "diskRatio": {key: info.get(key) for key in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
        "tps": {
            "normalInTps": first_rate(info.get("putTps")),
            "normalOutTps": first_rate(info.get("getTransferredTps")),
            "transInTps": half_tps,
            "scheduleInTps": delayed_tps,
        },
        "oneDayNum": {
            "normalOneDayInNum": _of_yesterday(info, "msgPutTotal"),
            "normalOneDayOutNum": _of_yesterday(info, "msgGetTotal"),
            "transOneDayInNum": half_messages,
            "scheduleOneDayInNum": delayed_messages,
        },
        "messageAverageSize": info.get("putMessageAverageSize"),
        "topicSize": len(topics),
        "groupSize": len(groups),
    }
    versions = {
        "rocketmqVersion": version_name(PROTOCOL_VERSION),
        "clientInfo": await _client_versions(admin, address, groups),
    }
    return {
        "runtimeEnv": {"cpuNum": processors} if processors else {},
        "runtimeQuota": quota,
        "runtimeVersion": versions,
    }


async def _sends(admin: AdminClient, address: str, topic: str) -> tuple[float, int]:
    """Returns (messages per second in the last minute, messages in a day) of a topic on one broker."""
    data = await admin.broker_stats(address, TOPIC_PUT_NUMS, topic)
    return (data.stats_minute.tps, messages_of_day(data)) if data else (0.0, 0)


def _of_yesterday(info: dict[str, str], counter: str) -> int:
    return int(number_of(info, f"{counter}TodayMorning") - number_of(info, f"{counter}YesterdayMorning"))


async def _client_versions(admin: AdminClient, address: str, groups: dict[str, SubscriptionGroupConfig]) -> list[str]:
    """Returns the languages and versions of a broker's connected consumers, such as JAVA%V5_5_0, sorted."""
    found: set[str] = set()
    for group in groups:
        try:
            connections = (await admin.consumer_connection(group, address)).connection_set
        except BrokerError as e:
            if e.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            continue
        found |= {f"{one.language}%{version_name(one.version)}" for one in connections}
    return sorted(found)


def _written(path: Path, document: dict[str, Any]) -> Output:
    """Writes the document into a file, and returns the command's output. Raises ClientError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    except OSError as e:
        raise ClientError(f"can't write {path}: {e.strerror or e}") from e
    return Output(document, [f"export {path} success"])
