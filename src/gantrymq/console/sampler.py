"""Adds samples of the cluster's metrics to the history every 15 s. The console's own keys sign the requests.

It also records rebalances: changes of a group's members between two samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gantrymq.background.repeating import Repeating
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.history import SAMPLE_S, History, Rebalance
from gantrymq.console.queries.group_state import group_of
from gantrymq.console.queries.kinds import is_tools_group
from gantrymq.console.queries.servers import all_brokers
from gantrymq.errors import BrokerError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.system.clock import now_ms, time

#: Largest number of groups in a sample, ordered by lag and then by rate. 1,000 groups take 35 MB a day.
MAX_GROUPS = 1000
#: Timeout for the brokers' data of a sample, s. Data of groups that arrives later is in the next sample.
_SERVERS_WAIT_S = 8.0
_GROUPS_WAIT_S = 4.0
#: Number of samples between two times at which the history averages and deletes old samples.
_THIN_EACH = 60


#: Largest number of groups whose members are queried for one sample. Further groups follow in the next samples.
GROUPS_PER_SAMPLE = 64


class GroupMembers:
    """The members of groups at their last sample."""

    def __init__(self) -> None:
        self._members: dict[str, frozenset[str]] = {}
        self._last = ""

    def __contains__(self, group: str) -> bool:
        return group in self._members

    def next_groups(self, groups: Iterable[str]) -> Sequence[str]:
        """Returns the groups of the next sample. Forgets groups that no longer exist."""
        known = sorted(groups)
        for gone in self._members.keys() - set(known):
            del self._members[gone]
        if len(known) <= GROUPS_PER_SAMPLE:
            return known
        first = next((number for number, group in enumerate(known) if group > self._last), 0)
        chosen = (known[first:] + known[:first])[:GROUPS_PER_SAMPLE]
        self._last = chosen[-1]
        return chosen

    def seen(self, group: str, members: Iterable[str], now_ms: int) -> Rebalance | None:
        """Returns the change since the last sample; None without a change and for the first sample."""
        now = frozenset(members)
        before = self._members.get(group)
        self._members[group] = now
        if before is None or before == now:
            return None
        return Rebalance(now_ms, sorted(now - before), sorted(before - now), len(now))


class Sampler:
    """Adds samples to the history until `stop`. Call `start` in the event loop of `view`."""

    def __init__(self, view: ClusterView, history: History) -> None:
        self._view = view
        self._history = history
        self._samples = 0
        self.members = GroupMembers()
        self._job = Repeating("sample the cluster", self.sample, SAMPLE_S)

    def start(self) -> None:
        self._job.start(0.0)

    async def stop(self) -> None:
        await self._job.stop()

    async def sample(self) -> None:
        """Adds one sample. Raises GantryError if no NameServer responds, or if the history cannot be written."""
        values: dict[str, float] = {}
        servers = await self._view.servers.get(_SERVERS_WAIT_S, _SERVERS_WAIT_S)
        if servers is not None:
            brokers = [broker for broker in all_brokers(servers) if broker.address in servers.runtime]
            for broker in brokers:
                # The id is added, because slaves have the same name as their master.
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
            disks = [broker.disk_used_ratio for broker in brokers if broker.disk_used_ratio is not None]
            if disks:
                values["disk"] = max(disks)
        groups = await self._view.groups.get(_GROUPS_WAIT_S, _GROUPS_WAIT_S)
        if groups is not None:
            now = now_ms()
            rows = [
                group_of(name, of_topics, now)
                for name, of_topics in groups.progress.items()
                if not is_tools_group(name)
            ]
            if not groups.unasked:
                values["lag"] = float(sum(row.lag for row in rows))
            rows.sort(key=lambda row: (row.lag, row.tps), reverse=True)
            for row in rows[:MAX_GROUPS]:
                values[f"group/{row.name}/lag"] = float(row.lag)
                values[f"group/{row.name}/seconds"] = row.seconds or 0.0
                values[f"group/{row.name}/tps"] = row.tps
            await self._sample_members([row.name for row in rows])
        if values and not self._view.settings.prometheus:
            await self._history.add(time(), values)
        if not self._samples % _THIN_EACH:
            await self._history.thin(time())
        self._samples += 1

    async def _sample_members(self, groups: list[str]) -> None:
        """Records changes of the groups' members. Omits groups without a retry topic, and those whose query failed."""
        answers = await self._view.each(self.members.next_groups(groups), self._members_of)
        now = now_ms()
        changes = {
            group: change
            for group, members in answers.results.items()
            if (change := self.members.seen(group, members, now)) is not None
        }
        if changes:
            await self._history.add_rebalances(changes)

    async def _members_of(self, group: str) -> list[str]:
        try:
            return [one.client_id for one in (await self._view.admin.consumer_connection(group)).connection_set]
        except BrokerError as e:
            if e.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return []
            raise
