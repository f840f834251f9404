"""Features of Apache RocketMQ 5.5 that GantryMQ refuses: how each one is requested, and what to use instead.

Servers refuse the requests, settings and attributes, and `gantry admin` refuses the commands. `docs/compatibility.md`
contains this table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gantrymq.protocol.codes import RequestCode as Code


class UnsupportedFeature(NamedTuple):
    """A feature that is refused.

    Attributes:
        name: Name of the feature, in the plural.
        instead: A sentence that says what to use instead, or why the feature is missing.
        requests: Codes of its requests to a broker.
        settings: Keys of a broker's configuration that enable it, with a regular expression for the value.
        attributes: Attributes of topics or groups, as `name=value` or as the beginning of a name that ends with a dot.
        commands: Its commands of mqadmin.
    """

    name: str
    instead: str
    requests: tuple[int, ...] = ()
    settings: Mapping[str, str] = {}
    attributes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text of an error."""
        return f"{self.name} are not supported: {self.instead}"


UNSUPPORTED_FEATURES = (
    UnsupportedFeature(
        "static topics",
        "create the topic on further brokers, and drain a broker with 'gantry admin updateTopic -w 0'",
        requests=(Code.UPDATE_AND_CREATE_STATIC_TOPIC,),
        commands=("updateStaticTopic", "remappingStaticTopic"),
    ),
    UnsupportedFeature(
        "batch consume queues",
        "use queue.type=SimpleCQ; producers can send batches to any topic",
        attributes=("queue.type=BatchCQ",),
    ),
    UnsupportedFeature(
        "wildcard subscriptions of lite topics",
        "subscribe to each lite topic, or send to an ordinary topic",
        attributes=("lite.sub.wildcard=true",),
    ),
    UnsupportedFeature(
        "stores in RocksDB",
        "use the default store, whose files a broker of either project can read",
        requests=(Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, Code.POP_ROLLBACK),
        settings={
            "storeType": "defaultRocksDB",
            "configManagerVersion": "v2",
            "timerRocksDBEnable": "true",
            "transRocksDBEnable": "true",
            "popConsumerKVServiceEnable": "true",
        },
        commands=("rocksDBConfigToJson", "checkRocksdbCqWriteProgress", "exportMetadataInRocksDB", "exportPopRecord"),
    ),
    UnsupportedFeature(
        "other timer engines",
        "the broker's only timer engine is the timer wheel",
        requests=(5001,),
        commands=("switchTimerEngine",),
    ),
    UnsupportedFeature(
        "commit logs of DLedger",
        "replicate with a controller",
        settings={"enableDLegerCommitLog": "true"},
    ),
    UnsupportedFeature(
        "limits for reads of cold data",
        "read old messages with rocketmq-store, which reads files without the broker",
        requests=(
            Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.GET_COLD_DATA_FLOW_CTR_INFO,
            Code.SET_COMMITLOG_READ_MODE,
        ),
        commands=(
            "getColdDataFlowCtrInfo",
            "updateColdDataFlowCtrGroupConfig",
            "removeColdDataFlowCtrGroupConfig",
            "setCommitLogReadAheadMode",
        ),
    ),
    UnsupportedFeature(
        "broker containers",
        # A broker has one thread for all requests, so the brokers of a container would share one processor core.
        "'gantry broker --processes N' runs several brokers, each in its own process",
        requests=(Code.ADD_BROKER, Code.REMOVE_BROKER),
    ),
    UnsupportedFeature(
        "monitoring commands",
        "'gantry doctor' checks a cluster once, and metrics serve alerts",
        commands=("startMonitoring",),
    ),
)

_BY_REQUEST = {code: feature for feature in UNSUPPORTED_FEATURES for code in feature.requests}


def feature_of_request(code: int) -> UnsupportedFeature | None:
    """Returns the refused feature with this request code."""
    return _BY_REQUEST.get(code)


def feature_of_attribute(name: str, value: str) -> UnsupportedFeature | None:
    """Returns the refused feature that an attribute of a topic or group belongs to."""
    for feature in UNSUPPORTED_FEATURES:
        for attribute in feature.attributes:
            if f"{name}={value}" == attribute or (attribute.endswith(".") and name.startswith(attribute)):
                return feature
    return None


def features_of_settings(properties: Mapping[str, str]) -> Iterable[tuple[str, UnsupportedFeature]]:
    """Yields each setting, as `key=value`, that enables a refused feature."""
    for feature in UNSUPPORTED_FEATURES:
        for key, pattern in feature.settings.items():
            value = properties.get(key, "").strip()
            if re.fullmatch(pattern, value, re.IGNORECASE | re.DOTALL):
                yield f"{key}={value[:200]}", feature
