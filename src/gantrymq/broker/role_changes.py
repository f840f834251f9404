"""RoleChanges: makes a running broker master, slave or acting master (`BrokerController.changeToMaster`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gantrymq.broker.append import Appender, EscapeRoute
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature, handler_table
from gantrymq.broker.replication import STAND_IN_CODES, Replication, as_doubted_master, as_slave
from gantrymq.remoting.connection import RequestHandler


class RoleChanges:
    """Changes the role of all features, and the request handlers of the broker's server.

    The controller client or the acting-master feature decides when a role changes.
    """

    def __init__(
        self,
        context: BrokerContext,
        handlers: dict[int, RequestHandler],
        *,
        replication: Replication,
        appender: Appender,
        escape_bridge: EscapeRoute,
    ) -> None:
        self._context = context
        self._handlers = handlers
        self._replication = replication
        self._appender = appender
        self._escaping = escape_bridge
        self._features: Sequence[Feature] = ()
        self._acting_features: Sequence[Feature] = ()
        self._as_master: dict[int, RequestHandler] = {}
        self._as_slave: dict[int, RequestHandler] = {}
        #: The handlers of the present role.
        self._of_role: Mapping[int, RequestHandler] = {}
        self._is_doubted = False
        context.events.mastership_doubted.subscribe(self._mastership_doubted)

    def begin(self, features: Sequence[Feature], acting_features: Sequence[Feature]) -> None:
        """Sets the request handlers: those of `features`, for the configured role.

        `acting_features` are the features that an acting master needs. Raises ValueError if two features handle the
        same code.
        """
        self._features, self._acting_features = features, acting_features
        self._as_master = handler_table(features)
        self._as_slave = as_slave(self._as_master, self._context.config)
        for handlers in (self._as_master, self._as_slave):
            self._context.access.guard(handlers)
        self._set_handlers(self._as_slave if self._context.is_slave else self._as_master)

    async def become_master(self, begin_epoch: Callable[[], None] | None = None) -> None:
        """Makes a slave the master. Raises GantryError; the caller may retry.

        In controller mode, `begin_epoch` is called when the log is writable, before slaves can connect.
        """
        # Replication comes first: only then can the other features write to the log.
        await self._replication.become_master(begin_epoch)
        for feature in self._features:
            if feature is not self._replication:
                await feature.become_master()
        self._context.events.config_changed.publish()
        self._set_handlers(self._as_master)

    async def become_slave(self) -> None:
        """Makes a master a slave. Raises GantryError; the caller may retry."""
        self._set_handlers(self._as_slave)
        for feature in reversed(self._features):
            if feature is not self._replication:
                await feature.become_slave()
        await self._replication.become_slave()
        self._context.events.config_changed.publish()

    async def stand_in(self) -> None:
        """Makes a slave the acting master."""
        self._appender.escape_by(self._escaping)
        for feature in self._acting_features:
            await feature.stand_in()
        self._handlers.update({code: self._as_master[code] for code in STAND_IN_CODES})

    async def stand_back(self) -> None:
        """Makes an acting master an ordinary slave, after its master is back or another slave is acting master."""
        self._set_handlers(self._as_slave)
        for feature in reversed(self._acting_features):
            await feature.become_slave()
        self._appender.escape_by(None)
        await self._escaping.end()

    def _mastership_doubted(self, is_doubted: bool) -> None:
        """Rejects pops while another broker may be the master."""
        self._is_doubted = is_doubted
        if self._of_role is self._as_master:
            self._apply_handlers()

    def _set_handlers(self, handlers: Mapping[int, RequestHandler]) -> None:
        self._of_role = handlers
        self._apply_handlers()
        self._context.events.role_changed.publish()

    def _apply_handlers(self) -> None:
        self._handlers.update(self._of_role)
        if self._is_doubted and self._of_role is self._as_master:
            self._handlers.update(as_doubted_master())
