"""Access control of a broker: what the configuration asks for, put before the handlers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from gantrymq.auth.guard import Access, guarded
from gantrymq.auth.user_table import UserTable
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.part import Part
from gantrymq.errors import ConfigError
from gantrymq.remoting.connection import RequestHandler

if TYPE_CHECKING:
    from gantrymq.auth.plain_access import PlainAccess
    from gantrymq.auth.plain_acl_file import PlainAclFiles

log = logging.getLogger(__name__)

#: How often plain_acl.yml is looked at for a change (`AclFileWatchService`), s.
WATCH_INTERVAL_S = 5.0


class AccessControl(Part):
    """The users of 5.x, always there, and who is let in: all, accounts of plain_acl.yml, or those users."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.users = UserTable(config.store.config_directory / "auth" / "users.json")
        self._plain: PlainAccess | None = None
        self._plain_files: PlainAclFiles | None = None

    def load(self) -> None:
        """Reads users and accounts. Raises StoreError or ConfigError."""
        config = self._config
        self.users.load(config.auth)
        # The rules of either way are imported where they are wanted: a tenth of a broker's start.
        if config.auth.acl_enable:
            from gantrymq.auth.plain_access import PlainAccess
            from gantrymq.auth.plain_acl_file import PlainAclFiles

            self._plain_files = PlainAclFiles(self._plain_acl_path())
            self._plain = PlainAccess(self._plain_files.load())

    def guard(self, handlers: dict[int, RequestHandler]) -> None:
        """Puts the check before each handler, if there is one to be made."""
        access = self._access()
        if access is not None:
            for code, handler in handlers.items():
                handlers[code] = guarded(handler, access)

    def reload(self) -> None:
        """Takes over a changed plain_acl.yml."""
        if self._plain is not None and self._plain_files is not None:
            self._plain.acl = self._plain_files.changed() or self._plain.acl

    def _access(self) -> Access | None:
        auth = self._config.auth
        if self._plain is not None:
            return self._plain
        if not auth.authentication_enabled and not auth.authorization_enabled:
            return None
        if not auth.authentication_enabled:
            log.warning("authorizationEnabled without authenticationEnabled: a client is who it says it is")
        from gantrymq.auth.user_access import UserAccess

        return UserAccess(auth, self._config.broker_cluster_name, self.users)

    def _plain_acl_path(self) -> Path:
        config = self._config
        if config.auth.plain_acl_file is not None:
            return config.auth.plain_acl_file
        if config.broker_config_path is None:
            raise ConfigError("aclEnable=true: rocketmq.acl.plain.file must name a plain_acl.yml")
        return config.broker_config_path.parent / "plain_acl.yml"
