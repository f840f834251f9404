"""The broker's consumer groups as configured, and subscriptionGroup.json (`SubscriptionGroupManager`)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from pathlib import Path

from gantrymq.broker.part import Part
from gantrymq.broker.saving import Saving, in_pieces
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.protocol.bodies.topic_config import PERM_READ
from gantrymq.protocol.topic_name import group_problem

__all__ = ["SubscriptionGroupConfig", "SubscriptionGroupTable"]

log = peer_log(__name__)

#: With so many groups clients make no more; administrators may. Each has a retry topic, and stays for good: 5 KB.
MAX_MADE_BY_CLIENTS = 20_000


class SubscriptionGroupTable(Part):
    """Group name -> SubscriptionGroupConfig. With `auto_create` an unknown group comes to be when it is asked for.

    The file is written soon; who creates a group waits for `written`.
    """

    def __init__(self, path: Path, *, auto_create: bool, saving: Saving) -> None:
        self._file = saving.file(path, self._encode)
        self.auto_create = auto_create
        self._table = SubscriptionGroupWrapper()

    def load(self) -> None:
        self._table = self._file.load(SubscriptionGroupWrapper) or self._table

    def written(self) -> Awaitable[None]:
        """Done when all changes are on the disk. Raises StoreError."""
        return self._file.written()

    @property
    def table(self) -> SubscriptionGroupWrapper:
        """All groups and their version."""
        return self._table

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group if there is one; none is made."""
        return self._table.subscription_group_table.get(group)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group; made on the spot with autoCreateSubscriptionGroup, if its name is allowed."""
        config = self._table.subscription_group_table.get(group)
        if config is None and self.auto_create and group_problem(group) is None:
            if len(self._table.subscription_group_table) >= MAX_MADE_BY_CLIENTS:
                log.warning("group %s isn't made: there are %d; updateSubGroup makes it", group, MAX_MADE_BY_CLIENTS)
                return None
            config = SubscriptionGroupConfig(group)
            self.put([config])
            log.info("created subscription group %s", group)
        return config

    def put(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Creates or replaces groups."""
        self._table.subscription_group_table.update((config.group_name, config) for config in configs)
        self._changed()

    def remove(self, group: str) -> bool:
        """False when there was no such group."""
        if self._table.subscription_group_table.pop(group, None) is None:
            return False
        self._table.forbidden_table.pop(group, None)
        self._changed()
        return True

    def copy(self, master: SubscriptionGroupWrapper) -> None:
        """Takes all groups and their version from the master's table; equal versions say that they are the same."""
        if self._table.data_version != master.data_version:
            self._table = master
            self._file.write_soon()

    def may_read(self, group: str, topic: str) -> bool:
        """Whether nobody has forbidden the group to pull from the topic."""
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
