"""The configuration, read and changed while the broker runs: GET_BROKER_CONFIG, UPDATE_BROKER_CONFIG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.part import Part
from gantrymq.config import (
    format_properties,
    from_properties,
    load_properties,
    parse_properties,
    property_key,
    replace_file,
    to_properties,
    unknown_keys,
)
from gantrymq.errors import ConfigError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.stats import GetBrokerConfigResponseHeader
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.tls import TlsConfig
from gantrymq.store.config import StoreConfig

log = peer_log(__name__)

#: Java's black list (`AdminBrokerProcessor.initConfigBlackList`).
_BLACK_LIST = {"brokerConfigPath", "configBlackList", "rocketmqHome"}
#: What the broker is or has opened already, or has taken a copy of; Java takes a new value and goes on with the old.
_READ_AT_START = {
    "brokerName",
    "brokerClusterName",
    "brokerId",
    "brokerIP1",
    "bindAddress",
    "listenPort",
    "fastListenEnable",
    "haListenPort",
    "namesrvAddr",
    "metricsPort",
    *(property_key(field) for field in fields(TlsConfig)),
    *(property_key(field) for field in fields(AuthConfig)),
    "flushConsumerOffsetInterval",
    "sendThreadPoolQueueCapacity",
    "popPollingSize",
    "maxPopPollingSize",
    "popCkStayBufferTime",
    "popCkStayBufferTimeOut",
    "popCkMaxBufferSize",
    "clusterTopicEnable",
    "brokerTopicEnable",
    "traceTopicEnable",
    "msgTraceTopicName",
    "regionId",
    "traceOn",
    "storePathRootDir",
    "storePathCommitLog",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "flushDiskType",
    "flushIntervalCommitLog",
    "flushIntervalConsumeQueue",
    "flushConsumeQueueLeastPages",
    "flushConsumeQueueThoroughInterval",
    "maxMessageSize",
    "accessMessageInMemoryMaxRatio",
    "messageDelayLevel",
    "messageIndexEnable",
    "maxHashSlotNum",
    "maxIndexNum",
    "deleteWhen",
    "enabledAppendPropCRC",
    "forceVerifyPropCRC",
    "timerWheelEnable",
    "timerPrecisionMs",
    "timerRollWindowSlot",
    "timerFlushIntervalMs",
    "mappedFileSizeTimerLog",
}


class BrokerConfigAdmin(Part):
    """Changes `config`, which all parts of the broker hold, and the file that it came from; `on_change` is told."""

    def __init__(self, config: BrokerConfig, on_change: Callable[[], None]) -> None:
        self._config = config
        self._on_change = on_change
        self._version = DataVersion()

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.GET_BROKER_CONFIG: self.get, RequestCode.UPDATE_BROKER_CONFIG: self.update}

    def get(self, connection: Connection, request: RemotingCommand) -> Reply:
        """All keys, as properties text."""
        return RemotingCommand.response(
            header=GetBrokerConfigResponseHeader(version=encode_json(self._version).decode()),
            body=format_properties(properties_of(self._config)).encode(),
        )

    def update(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Changes the keys of a properties text, all or none."""
        source = f"UPDATE_BROKER_CONFIG of {connection.address}"
        try:
            changes = parse_properties(request.body.decode("utf-8", "replace"), source=source)
            self._check(changes)
            unknown = unknown_keys([BrokerConfig, StoreConfig], changes)
            if unknown:
                log.warning("%s: not used here: %s", source, ", ".join(unknown))
            properties = properties_of(self._config) | changes
            store = from_properties(StoreConfig, properties, source=source)
            updated = replace(
                from_properties(BrokerConfig, properties, source=source), store=store, auth=self._config.auth
            )
            for key in unknown:
                del changes[key]
            self._write_file(changes)
        except ConfigError as e:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(e)) from e
        _copy(updated.store, self._config.store)
        updated.store = self._config.store
        _copy(updated, self._config)
        self._version.advance()
        log.info("%s set %s", source, ", ".join(f"{key}={value}" for key, value in changes.items()))
        self._on_change()
        return RemotingCommand.response()

    def _check(self, changes: dict[str, str]) -> None:
        forbidden = sorted(changes.keys() & _BLACK_LIST)
        if forbidden:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(forbidden)}"
            )
        current = properties_of(self._config)
        fixed = sorted(key for key in changes.keys() & _READ_AT_START if changes[key].strip() != current.get(key))
        if fixed:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"{', '.join(fixed)}: read when the broker starts; change it in the configuration file, start anew",
            )

    def _write_file(self, changes: dict[str, str]) -> None:
        path = self._config.broker_config_path
        if path is None:
            log.warning("the broker was started without a configuration file: the change lasts until it stops")
            return
        replace_file(path, format_properties(load_properties(path) | changes).encode())


def properties_of(config: BrokerConfig) -> dict[str, str]:
    """Keys and values of the broker's and its store's configuration, which Java has in one file.

    Those of access control are left out: some are secrets.
    """
    properties = to_properties(config) | to_properties(config.store)
    del properties["store"], properties["auth"]
    return properties


def _copy(source: Any, target: Any) -> None:
    for field in fields(source):
        setattr(target, field.name, getattr(source, field.name))
