"""The configuration of the broker's consumer groups, and subscriptionGroup.json (`SubscriptionGroupManager`)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from pathlib import Path

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables.persistence import TablePersistence, in_pieces
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.protocol.bodies.topic_config import PERM_READ
from gantrymq.protocol.multi_dispatch import MAX_NAME_LENGTH, is_light_queue
from gantrymq.protocol.topic_name import PREDEFINED_GROUPS, SYSTEM_GROUP_PREFIX, group_problem

__all__ = ["SubscriptionGroupConfig", "SubscriptionGroupTable"]

log = peer_log(__name__)

#: At this number of groups, only administrators can create more. A group is permanent, has a retry topic and uses 5 KB.
MAX_MADE_BY_CLIENTS = 20_000


class SubscriptionGroupTable(Feature):
    """Stores the configuration of each group. `get` creates unknown groups.

    Changes are written to the file soon. A request that creates a group waits for `written`.
    """

    def __init__(self, config: BrokerConfig, path: Path, *, persistence: TablePersistence) -> None:
        self._file = persistence.file(path, self._encode)
        self._config = config
        #: A changed setting takes effect at the next start, as in the store.
        self._has_light_queues = config.store.enable_lmq
        self._table = SubscriptionGroupWrapper()

    def load(self) -> None:
        self._table = self._file.load(SubscriptionGroupWrapper) or self._table

    def written(self) -> Awaitable[None]:
        """Completes when all changes are on disk. Raises StoreError."""
        return self._file.written()

    @property
    def table(self) -> SubscriptionGroupWrapper:
        """All groups and their version."""
        return self._table

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Returns a group, or None. Unlike `get`, it creates no group. With `enableLmq`, all light groups exist."""
        config = self._table.subscription_group_table.get(group)
        if config is None and self._has_light_queues and is_light_queue(group):
            if len(group.encode()) > MAX_NAME_LENGTH:
                return None
            return SubscriptionGroupConfig(group)
        return config

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Returns a group, or None.

        If the group is missing, creates it, provided that its name is valid and there are fewer than
        MAX_MADE_BY_CLIENTS groups. If `autoCreateSubscriptionGroup` is off, creates only groups of tools and brokers.
        """
        config = self.find(group)
        if config is None and self._may_create(group) and group_problem(group) is None:
            if len(self._table.subscription_group_table) >= MAX_MADE_BY_CLIENTS:
                log.warning("group %s isn't made: there are %d; updateSubGroup makes it", group, MAX_MADE_BY_CLIENTS)
                return None
            config = SubscriptionGroupConfig(group)
            self.put([config])
            log.info("created subscription group %s", group)
        return config

    def _may_create(self, group: str) -> bool:
        config = self._config
        return (
            config.auto_create_subscription_group
            or group in PREDEFINED_GROUPS
            or (config.enable_create_sys_group and group.startswith(SYSTEM_GROUP_PREFIX))
        )

    def put(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Creates or replaces groups. With `enableLmq`, light groups are skipped (`LmqSubscriptionGroupManager`)."""
        if self._has_light_queues:
            configs = [config for config in configs if not is_light_queue(config.group_name)]
        self._table.subscription_group_table.update((config.group_name, config) for config in configs)
        self._changed()

    def remove(self, group: str) -> bool:
        """Removes a group. Returns False if it does not exist."""
        if self._table.subscription_group_table.pop(group, None) is None:
            return False
        self._table.forbidden_table.pop(group, None)
        self._changed()
        return True

    def copy(self, master: SubscriptionGroupWrapper) -> None:
        """Replaces all groups and their version by those of the master, unless the versions are equal."""
        if self._table.data_version != master.data_version:
            self._table = master
            self._file.write_soon()

    def may_read(self, group: str, topic: str) -> bool:
        """Returns False if an administrator has forbidden the group to pull from the topic."""
        return not self._table.forbidden_table.get(group, {}).get(topic, 0) & PERM_READ

    def set_may_read(self, group: str, topic: str, readable: bool) -> None:
        """Forbids a group to pull from a topic, or allows it again."""
        topics = self._table.forbidden_table.setdefault(group, {})
        bits = topics.get(topic, 0)
        bits = bits & ~PERM_READ if readable else bits | PERM_READ
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
        if not topics:
            del self._table.forbidden_table[group]
        self._changed()

    def _changed(self) -> None:
        self._table.data_version.advance()
        self._file.write_soon()

    def _encode(self) -> Iterator[bytes]:
        return in_pieces(self._table)
