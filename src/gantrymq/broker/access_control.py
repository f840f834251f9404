"""Access control of a broker: what the configuration asks for, put before the handlers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING

from gantrymq.auth.guard import Access, caller_of, guarded
from gantrymq.auth.user_table import UsersFile, UserTable, tables_of
from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.part import Part
from gantrymq.broker.saving import Saving
from gantrymq.errors import ConfigError, RecordError
from gantrymq.protocol.record import Record
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.store.message_store import MessageStore
from gantrymq.store.queued_record import queued_record

if TYPE_CHECKING:
    from gantrymq.auth.plain_access import PlainAccess
    from gantrymq.auth.plain_acl_file import PlainAclFiles

log = logging.getLogger(__name__)

#: How often plain_acl.yml is looked at for a change (`AclFileWatchService`), s.
WATCH_INTERVAL_S = 5.0


class AccessControl(Part):
    """The users of 5.x, always there, and who is let in: all, accounts of plain_acl.yml, or those users."""

    def __init__(self, config: BrokerConfig, store: MessageStore, jobs: Jobs, *, saving: Saving) -> None:
        self._config = config
        self._store = store
        self.users = UserTable(self._users_changed)
        self._users_file = saving.file(
            config.store.config_directory / "auth" / "users.json", self.users.encode, is_secret=True
        )
        #: None lets everybody do everything.
        self._access: Access | None = None
        self._plain: PlainAccess | None = None
        self._plain_files: PlainAclFiles | None = None
        self._watching = (
            jobs.repeating("look for changed accounts", self.reload, WATCH_INTERVAL_S)
            if config.auth.acl_enable
            else None
        )

    def load(self) -> None:
        """Reads users and accounts. Raises StoreError or ConfigError."""
        auth = self._config.auth
        self.users.load(auth, self._users_file.load(UsersFile, check=tables_of))
        # The rules, and the words of either way, are imported where they are wanted: a tenth of a broker's start.
        if auth.acl_enable:
            from gantrymq.auth.need import Guarded
            from gantrymq.auth.plain_access import PlainAccess
            from gantrymq.auth.plain_acl_file import PlainAclFiles

            self._plain_files = PlainAclFiles(self._plain_acl_path())
            broker = Guarded(self._config.broker_cluster_name, self._record_at)
            self._access = self._plain = PlainAccess(
                self._plain_files.load(), broker, needs_bound=auth.bound_signature_required
            )
        elif auth.authentication_enabled or auth.authorization_enabled:
            from gantrymq.auth.need import Guarded
            from gantrymq.auth.user_access import UserAccess

            if not auth.authentication_enabled:
                log.warning("authorizationEnabled without authenticationEnabled: a client is who it says it is")
            broker = Guarded(self._config.broker_cluster_name, self._record_at)
            self._access = UserAccess(auth, broker, self.users)

    async def start(self) -> None:
        if self._watching is not None:
            self._watching.start()

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def users_written(self) -> Awaitable[None]:
        """Done when all changes of users are on the disk. Raises StoreError; they hold in any case."""
        return self._users_file.written()

    @property
    def is_on(self) -> bool:
        """Each request is looked at."""
        return self._access is not None

    def guard(self, handlers: dict[int, RequestHandler]) -> None:
        """Puts the check before each handler, if there is one to be made."""
        if self._access is not None:
            for code, handler in handlers.items():
                handlers[code] = guarded(handler, self._access)

    def may_send(self, connection: Connection, topic: str) -> bool:
        """Whether who is at the other end may send to a topic."""
        return self._access is None or self._access.may_send(caller_of(connection), topic)

    def is_same_user(self, one: Connection, other: Connection) -> bool:
        """Whether the same user is at the other end of both; without access control nobody is told from another."""
        return self._access is None or caller_of(one).name == caller_of(other).name

    def is_super(self, connection: Connection) -> bool:
        """Whether who is at the other end may do everything."""
        return self._access is None or self._access.is_super(caller_of(connection))

    def may_see_passwords(self, connection: Connection) -> bool:
        """Whether who is at the other end has proved to be a super user."""
        return self._config.auth.authentication_enabled and self.is_super(connection)

    def reload(self) -> None:
        """Takes over a changed plain_acl.yml."""
        if self._plain is not None and self._plain_files is not None:
            self._plain.acl = self._plain_files.changed() or self._plain.acl

    def _users_changed(self) -> None:
        self._users_file.write_soon()

    def _record_at(self, physical_offset: int) -> Record | None:
        try:
            return queued_record(self._store, physical_offset)
        except RecordError:
            return None

    def _plain_acl_path(self) -> Path:
        config = self._config
        if config.auth.plain_acl_file is not None:
            return config.auth.plain_acl_file
        if config.broker_config_path is None:
            raise ConfigError("aclEnable=true: rocketmq.acl.plain.file must name a plain_acl.yml")
        return config.broker_config_path.parent / "plain_acl.yml"
