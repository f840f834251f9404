"""Requests to read and change the configuration at run time: GET_BROKER_CONFIG, UPDATE_BROKER_CONFIG."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from gantrymq.broker.config import SECRET_KEYS, BrokerConfig
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.config import (
    changed_properties,
    format_properties,
    from_properties,
    parse_properties,
    property_key,
    read_properties,
    replace_file,
    to_properties,
    unknown_keys,
)
from gantrymq.errors import ConfigError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.topic_config import DataVersion
from gantrymq.protocol.broker_keys import READ_AT_START
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.stats import GetBrokerConfigResponseHeader
from gantrymq.remoting import tls
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig

log = peer_log(__name__)

#: Maximum size of a change, in bytes: parsing it takes 20 ms. All keys together have 6 KiB.
MAX_CHANGE_BYTES = 64 * 1024
#: Java's list of keys that can't be changed (`AdminBrokerProcessor.initConfigBlackList`).
_BLACK_LIST = {"brokerConfigPath", "configBlackList", "rocketmqHome"}


class BrokerConfigAdmin(Feature):
    """Changes the configuration that all features share, and the file that it was read from."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._config_changed = context.events.config_changed
        self._version = DataVersion()
        self._lock = asyncio.Lock()

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.GET_BROKER_CONFIG: self.get, RequestCode.UPDATE_BROKER_CONFIG: self.update}

    def get(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns all keys in properties format."""
        return RemotingCommand.response(
            header=GetBrokerConfigResponseHeader(version=encode_json(self._version).decode()),
            body=format_properties(properties_of(self._config)).encode(),
        )

    def update(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Changes the keys given in properties format, either all of them or none."""
        if len(request.body) > MAX_CHANGE_BYTES:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"a configuration of {len(request.body)} bytes: at most {MAX_CHANGE_BYTES} are taken",
            )
        connection.respond_with(request, self._update(f"UPDATE_BROKER_CONFIG of {connection.address}", request.body))
        return None

    async def _update(self, source: str, body: bytes) -> RemotingCommand:
        try:
            changes = parse_properties(body.decode("utf-8", "replace"), source=source)
            # If the client disconnects, the change must still complete, so that file and memory agree.
            remark = await asyncio.shield(self._apply(changes, source))
        except ConfigError as e:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(e)) from e
        return RemotingCommand.response(remark=remark)

    async def _apply(self, changes: dict[str, str], source: str) -> str | None:
        """Applies a change. Returns a remark, or None. Raises ConfigError or RequestRefused."""
        # Changes run one at a time, because each one starts from the result of the one before.
        async with self._lock:
            return await self._apply_one(changes, source)

    async def _apply_one(self, changes: dict[str, str], source: str) -> str | None:
        self._check(changes)
        unknown = unknown_keys([BrokerConfig, StoreConfig, ReplicationConfig], changes)
        remark = None
        if unknown:
            remark = f"not used here: {', '.join(unknown)}"
            log.warning("%s: %s", source, remark)
        properties = properties_of(self._config) | changes
        store = from_properties(StoreConfig, properties, source=source)
        replication = from_properties(ReplicationConfig, properties, source=source)
        broker = from_properties(BrokerConfig, properties, source=source)
        updated = replace(broker, store=store, replication=replication, auth=self._config.auth)
        for key in unknown:
            del changes[key]
        _check_taken(changes, properties_of(updated))
        await asyncio.get_running_loop().run_in_executor(None, self._write_file, changes)
        _copy(updated.store, self._config.store)
        _copy(updated.replication, self._config.replication)
        updated.store, updated.replication = self._config.store, self._config.replication
        _copy(updated, self._config)
        self._version.advance()
        log.info("%s set %s", source, ", ".join(f"{key}={value}" for key, value in changes.items()))
        self._config_changed.publish()
        return remark

    def _check(self, changes: dict[str, str]) -> None:
        forbidden = sorted(changes.keys() & _BLACK_LIST)
        if forbidden:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(forbidden)}"
            )
        current = properties_of(self._config)
        fixed = sorted(key for key in changes.keys() & READ_AT_START if changes[key].strip() != current.get(key))
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
        text = read_properties(path)
        parse_properties(text, source=str(path))
        replace_file(path, changed_properties(text, changes).encode())


def properties_of(config: BrokerConfig) -> dict[str, str]:
    """Returns the configuration of a broker, its store and its replication. Java has them in one file.

    The result omits passwords and the settings of access control.
    """
    properties = to_properties(config) | to_properties(config.store) | to_properties(config.replication)
    for key in ("store", "replication", "auth", *SECRET_KEYS, *tls.SECRET_KEYS):
        properties.pop(key, None)
    return properties


def _check_taken(changes: Mapping[str, str], taken: Mapping[str, str]) -> None:
    """Raises ConfigError if a number is out of range. At start, such a number is silently set to the limit."""
    for key, value in changes.items():
        with suppress(ValueError):
            if (wanted := float(value)) != (bound := float(taken[key])):
                most_or_least = "at least" if wanted < bound else "at most"
                raise ConfigError(f"{key}={value.strip()[:200]}: must be {most_or_least} {taken[key]}")


def _copy(source: Any, target: Any) -> None:
    """Copies every value that can change while the broker runs. A controller may have changed the role."""
    for field in fields(source):
        if property_key(field) not in READ_AT_START:
            setattr(target, field.name, getattr(source, field.name))
