"""The broker's consumer groups as configured, and subscriptionGroup.json (`SubscriptionGroupManager`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.topic_config import DataVersion
from gantrymq.protocol.topic_name import group_problem
from gantrymq.store.json_config import JsonConfigFile

log = logging.getLogger(__name__)


class GroupRetryPolicy(msgspec.Struct, rename="camel"):
    """How the delays between retries grow; CUSTOMIZED is the delay levels."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: dict[str, Any] | None = None
    customized_retry_policy: dict[str, Any] | None = None


class SubscriptionGroupConfig(msgspec.Struct, rename="camel"):
    """One group; `consume_timeout_minute` in minutes."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: GroupRetryPolicy = msgspec.field(default_factory=GroupRetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = {}


class _GroupFile(msgspec.Struct, rename="camel"):
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    forbidden_table: dict[str, dict[str, int]] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class SubscriptionGroupTable:
    """Group name -> SubscriptionGroupConfig."""

    def __init__(self, path: Path, *, auto_create: bool) -> None:
        self._file = JsonConfigFile(path)
        self._auto_create = auto_create
        self._table = _GroupFile()

    def load(self) -> None:
        data = self._file.load(lambda content: decode_json(content, _GroupFile))
        if data is not None:
            self._table = decode_json(data, _GroupFile)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group; made on the spot with autoCreateSubscriptionGroup, if its name is allowed."""
        config = self._table.subscription_group_table.get(group)
        if config is None and self._auto_create and group_problem(group) is None:
            config = SubscriptionGroupConfig(group)
            self.put(config)
            log.info("created subscription group %s", group)
        return config

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Creates or replaces a group."""
        self._table.subscription_group_table[config.group_name] = config
        self._table.data_version.advance()
        self._file.save(encode_json(self._table))
