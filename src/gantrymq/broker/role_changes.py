"""What a broker does when it becomes master or slave, or stands in for its master; who says so is others' to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gantrymq.broker.acting.escaping import Escaping
from gantrymq.broker.appender import Appender
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.part import Part, handler_table
from gantrymq.broker.replication.refusals import STAND_IN_CODES, as_slave
from gantrymq.broker.replication.replicating import Replicating
from gantrymq.remoting.connection import RequestHandler


class RoleChanges:
    """Of one broker. `handlers` are its server's, which change with the role.

    `acting_parts` are those that do in a slave that stands in what only a master does. `changed` is told of other
    handlers, `config_changed` when a new role is taken on.
    """

    def __init__(
        self,
        config: BrokerConfig,
        handlers: dict[int, RequestHandler],
        parts: Sequence[Part],
        acting_parts: Sequence[Part],
        replicating: Replicating,
        appender: Appender,
        escaping: Escaping,
        changed: Callable[[], None],
        config_changed: Callable[[], None],
    ) -> None:
        self.as_master = handler_table(parts)
        self.as_slave = as_slave(self.as_master, config)
        self._handlers = handlers
        self._handlers.update(self.as_master)
        self._parts = parts
        self._acting_parts = acting_parts
        self._replicating = replicating
        self._appender = appender
        self._escaping = escaping
        self._changed = changed
        self._config_changed = config_changed

    def begin(self, *, is_slave: bool) -> None:
        """Requests are answered as the configuration says."""
        self._answer_as(self.as_slave if is_slave else self.as_master)

    async def become_master(self) -> None:
        """The controller has made a slave master. Raises GantryError; it may be tried again."""
        # Before those that write into the log.
        await self._replicating.become_master()
        for part in self._parts:
            if part is not self._replicating:
                await part.become_master()
        self._config_changed()
        self._answer_as(self.as_master)

    async def become_slave(self) -> None:
        """Another is master now. Raises GantryError; it may be tried again."""
        self._answer_as(self.as_slave)
        for part in reversed(self._parts):
            if part is not self._replicating:
                await part.become_slave()
        await self._replicating.become_slave()
        self._config_changed()

    async def stand_in(self) -> None:
        """The master is gone, and this slave does in its place what only a master does."""
        self._appender.elsewhere = self._escaping.append_again
        self._appender.begin_elsewhere = self._escaping.begin
        for part in self._acting_parts:
            await part.stand_in()
        self._handlers.update({code: self.as_master[code] for code in STAND_IN_CODES})

    async def stand_back(self) -> None:
        """It is there again, or another slave stands in."""
        self._answer_as(self.as_slave)
        for part in reversed(self._acting_parts):
            await part.become_slave()
        self._appender.elsewhere = self._appender.begin_elsewhere = None
        await self._escaping.end()

    def _answer_as(self, handlers: Mapping[int, RequestHandler]) -> None:
        """Requests go to these from now on, also those that no handler would have seen."""
        self._handlers.update(handlers)
        self._changed()
