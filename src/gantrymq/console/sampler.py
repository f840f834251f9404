"""The sampler: takes the cluster's figures every 15 s, with the console's own keys, and puts them into the history."""

from __future__ import annotations

from gantrymq.background.repeating import Repeating
from gantrymq.console.eye import Eye
from gantrymq.console.history import SAMPLE_S, History
from gantrymq.console.queries.groups import group_of
from gantrymq.console.queries.kinds import is_tools_group
from gantrymq.console.queries.servers import all_brokers
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
        self._job = Repeating("sample the cluster", self.sample, SAMPLE_S)

    def start(self) -> None:
        self._job.start(0.0)

    async def stop(self) -> None:
        await self._job.stop()

    async def sample(self) -> None:
        """Raises GantryError when no NameServer answers, or the history can't be written."""
        values: dict[str, float] = {}
        servers = await self._eye.servers.get(_SERVERS_WAIT_S)
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
        groups = await self._eye.groups.get(_GROUPS_WAIT_S)
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
        if values:
            await self._history.add(time(), values)
        if not self._samples % _THIN_EACH:
            await self._history.thin(time())
        self._samples += 1
