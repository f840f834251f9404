"""The sampler: takes the cluster's figures every 15 s, with the console's own keys, and puts them into the history.

It looks at the members of groups, too: who came and left since the last look.
"""

from __future__ import annotations

from gantrymq.background.repeating import Repeating
from gantrymq.console.eye import Eye
from gantrymq.console.history import SAMPLE_S, History
from gantrymq.console.queries.groups import group_of
from gantrymq.console.queries.kinds import is_tools_group
from gantrymq.console.queries.servers import all_brokers
from gantrymq.console.rebalances import MembersSeen
from gantrymq.errors import BrokerError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.system.clock import now_ms, time

#: Groups that are kept, those that are furthest behind and then the fastest first: 1,000 take 35 MB a day.
MAX_GROUPS = 1000
#: How long a sample waits for brokers, s: groups come with the next one if they take longer.
_SERVERS_WAIT_S = 8.0
_GROUPS_WAIT_S = 4.0
#: Samples between two rounds of thinning.
_THIN_EACH = 60


class Sampler:
    """`start` it in the event loop of `eye`."""

    def __init__(self, eye: Eye, history: History) -> None:
        self._eye = eye
        self._history = history
        self._samples = 0
        self.members = MembersSeen()
        self._job = Repeating("sample the cluster", self.sample, SAMPLE_S)

    def start(self) -> None:
        self._job.start(0.0)

    async def stop(self) -> None:
        await self._job.stop()

    async def sample(self) -> None:
        """Raises GantryError when no NameServer answers, or the history can't be written."""
        values: dict[str, float] = {}
        servers = await self._eye.servers.get(_SERVERS_WAIT_S, _SERVERS_WAIT_S)
        if servers is not None:
            brokers = [broker for broker in all_brokers(servers) if broker.address in servers.runtime]
            for broker in brokers:
                # Slaves have the master's name.
                name = f"{broker.name}-{broker.broker_id}" if broker.broker_id else broker.name
                for what, value in (
                    ("in", broker.in_tps),
                    ("out", broker.out_tps),
                    ("disk", broker.disk_used_ratio),
                    ("log", broker.log_bytes),
                ):
                    if value is not None:
                        values[f"broker/{name}/{what}"] = float(value)
            if brokers:
                values["in"] = sum(broker.in_tps or 0.0 for broker in brokers)
                values["out"] = sum(broker.out_tps or 0.0 for broker in brokers)
        groups = await self._eye.groups.get(_GROUPS_WAIT_S, _GROUPS_WAIT_S)
        if groups is not None:
            now = now_ms()
            rows = [
                group_of(name, of_topics, now)
                for name, of_topics in groups.progress.items()
                if not is_tools_group(name)
            ]
            if not groups.unasked:
                values["behind"] = float(sum(row.behind for row in rows))
            rows.sort(key=lambda row: (row.behind, row.tps), reverse=True)
            for row in rows[:MAX_GROUPS]:
                values[f"group/{row.name}/behind"] = float(row.behind)
                values[f"group/{row.name}/seconds"] = row.seconds or 0.0
                values[f"group/{row.name}/tps"] = row.tps
            await self._look_at_members([row.name for row in rows])
        if values and not self._eye.settings.prometheus:
            await self._history.add(time(), values)
        if not self._samples % _THIN_EACH:
            await self._history.thin(time())
        self._samples += 1

    async def _look_at_members(self, groups: list[str]) -> None:
        """Groups without a retry topic, and those that nobody could be asked about, are left out."""
        answers = await self._eye.each(self.members.next_groups(groups), self._members_of)
        now = now_ms()
        changes = {
            group: change
            for group, members in answers.answers.items()
            if (change := self.members.seen(group, members, now)) is not None
        }
        if changes:
            await self._history.add_rebalances(changes)

    async def _members_of(self, group: str) -> list[str]:
        try:
            return [one.client_id for one in (await self._eye.admin.consumer_connection(group)).connection_set]
        except BrokerError as e:
            if e.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return []
            raise
