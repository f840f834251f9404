"""Which peers a broker exchanges its log with: access control of the HA port, and of the master that a slave follows.

With `authenticationEnabled` each side has to prove that it is a broker, by mutual TLS or by a handshake with the
credentials of a super user, unless `haAllowUnsigned` allows peers that can't, such as Java's.
"""

from __future__ import annotations

from gantrymq.auth.address_pattern import Matches, parse_pattern
from gantrymq.auth.user_table import UserTable
from gantrymq.auth.users import UserStatus, UserType
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.replication.credentials import inner_client
from gantrymq.remoting.tls import ClientAuth, TlsMode
from gantrymq.replication.authentication import SlaveHandshake


class HaAccess:
    """The access rules of one broker, as a master and as a slave. Raises ConfigError for malformed credentials."""

    def __init__(self, config: BrokerConfig, users: UserTable) -> None:
        self._config = config
        self._users = users
        self._credentials = inner_client(config.auth)
        #: The patterns of `haAllowedAddresses` and their parsed form; the key can change while the broker runs.
        self._patterns: list[str] = []
        self._matches: list[Matches] = []

    @property
    def needs_handshake(self) -> bool:
        """Slaves of this master have to sign."""
        config = self._config
        is_mutual_tls = (
            config.replication.ha_tls_enable
            and config.tls_server_mode is TlsMode.ENFORCING
            and config.tls_server_need_client_auth is ClientAuth.REQUIRE
        )
        return self._is_required and not is_mutual_tls

    def is_allowed(self, host: str) -> bool:
        """Whether a slave at this IP address may connect. This machine's own addresses need to be listed, too."""
        patterns = self._config.replication.ha_allowed_addresses
        if patterns != self._patterns:
            self._patterns, self._matches = list(patterns), [parse_pattern(pattern) for pattern in patterns]
        return not patterns or any(matches(host) for matches in self._matches)

    def secret_of(self, access_key: str) -> str | None:
        """The secret key of an enabled super user."""
        user = self._users.users.get(access_key)
        if user is None or user.user_type is not UserType.SUPER or user.user_status is not UserStatus.ENABLE:
            return None
        return user.password

    def slave_handshake(self, address: str) -> SlaveHandshake:
        """For a connection of this slave with a master at `address`."""
        config = self._config
        is_proved_by_tls = config.replication.ha_tls_enable and config.tls_client_auth_server
        told = "" if address == config.replication.ha_master_address else address
        return SlaveHandshake(self._credentials, told, is_required=self._is_required and not is_proved_by_tls)

    @property
    def _is_required(self) -> bool:
        return self._config.auth.authentication_enabled and not self._config.replication.ha_allow_unsigned
