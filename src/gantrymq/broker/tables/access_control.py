"""Access control of a broker: loads the configured users and permissions, and checks each request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING

from gantrymq.auth.guard import Access, caller_of, guarded
from gantrymq.auth.user_table import UsersFile, UserTable, tables_of
from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables.persistence import TablePersistence
from gantrymq.errors import ConfigError, RecordError
from gantrymq.protocol.record import Record
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.store.message_store import MessageStore
from gantrymq.store.queued_record import queued_record

if TYPE_CHECKING:
    from gantrymq.auth.plain_access import PlainAccess
    from gantrymq.auth.plain_acl_file import PlainAclFiles

log = logging.getLogger(__name__)

#: Interval of the check for a changed plain_acl.yml, in seconds (`AclFileWatchService`).
WATCH_INTERVAL_S = 5.0


class AccessControl(Feature):
    """Stores the users of RocketMQ 5.x and checks requests against them or the accounts of plain_acl.yml.

    Without access control, all requests are allowed. The table of users exists even then.
    """

    def __init__(self, config: BrokerConfig, store: MessageStore, jobs: Jobs, *, persistence: TablePersistence) -> None:
        self._config = config
        self._store = store
        self.users = UserTable(self._users_changed)
        self._users_file = persistence.file(
            config.store.config_directory / "auth" / "users.json", self.users.encode, is_secret=True
        )
        #: The permission check; None if all requests are allowed.
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
        # Imported only if needed, because these imports take a tenth of a broker's start time.
        if auth.acl_enable:
            from gantrymq.auth.permission import Guarded
            from gantrymq.auth.plain_access import PlainAccess
            from gantrymq.auth.plain_acl_file import PlainAclFiles

            self._plain_files = PlainAclFiles(self._plain_acl_path())
            broker = Guarded(self._config.broker_cluster_name, self.record_at)
            self._access = self._plain = PlainAccess(
                self._plain_files.load(), broker, needs_bound=auth.bound_signature_required
            )
        elif auth.authentication_enabled or auth.authorization_enabled:
            from gantrymq.auth.permission import Guarded
            from gantrymq.auth.user_access import UserAccess

            if not auth.authentication_enabled:
                log.warning("authorizationEnabled without authenticationEnabled: a client is who it says it is")
            broker = Guarded(self._config.broker_cluster_name, self.record_at)
            self._access = UserAccess(auth, broker, self.users)

    async def start(self) -> None:
        if self._watching is not None:
            self._watching.start()

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def users_written(self) -> Awaitable[None]:
        """Completes when all changes of users are on disk. Raises StoreError; even then, the changes are active."""
        return self._users_file.written()

    @property
    def is_on(self) -> bool:
        """True if requests are checked."""
        return self._access is not None

    def guard(self, handlers: dict[int, RequestHandler]) -> None:
        """Wraps each handler with the permission check, if access control is on."""
        if self._access is not None:
            for code, handler in handlers.items():
                handlers[code] = guarded(handler, self._access)

    def may_send(self, connection: Connection, topic: str) -> bool:
        """Returns True if the user of a connection may send to a topic."""
        return self._access is None or self._access.may_send(caller_of(connection), topic)

    def is_same_user(self, one: Connection, other: Connection) -> bool:
        """Returns True if both connections have the same user. Always True without access control."""
        return self._access is None or caller_of(one).name == caller_of(other).name

    def is_super(self, connection: Connection) -> bool:
        """Returns True if the user of a connection has all permissions."""
        return self._access is None or self._access.is_super(caller_of(connection))

    def may_see_passwords(self, connection: Connection) -> bool:
        """Returns True if the user of a connection is an authenticated super user."""
        return self._config.auth.authentication_enabled and self.is_super(connection)

    def reload(self) -> None:
        """Loads plain_acl.yml again if it has changed."""
        if self._plain is not None and self._plain_files is not None:
            self._plain.use(self._plain_files.changed() or self._plain.acl)

    def _users_changed(self) -> None:
        self._users_file.write_soon()

    def record_at(self, physical_offset: int) -> Record | None:
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
