"""Access control for replication: decides which brokers may exchange the log.

With `authenticationEnabled`, each side must prove that it is a broker. The proof is mutual TLS, or a handshake with the
credentials of a super user. Java brokers support neither. `haAllowUnsigned` admits peers without a proof.
"""

from __future__ import annotations

from gantrymq.auth.address_pattern import Matches, parse_pattern
from gantrymq.auth.user_table import UserTable
from gantrymq.auth.users import UserStatus, UserType
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.credentials import inner_client
from gantrymq.remoting.address import format_address
from gantrymq.remoting.tls import ClientAuth, TlsMode
from gantrymq.replication.authentication import MasterHandshake, SlaveHandshake


class HaAccess:
    """Access rules of a broker, as master and as slave. Raises ConfigError if the credentials are malformed."""

    def __init__(self, config: BrokerConfig, users: UserTable) -> None:
        self._config = config
        self._users = users
        self._credentials = inner_client(config.auth)
        #: The last value of `haAllowedAddresses` and its parsed form. The setting can change while the broker runs.
        self._patterns: list[str] = []
        self._matches: list[Matches] = []

    @property
    def needs_handshake(self) -> bool:
        """Whether slaves of this master must authenticate with a signed handshake."""
        config = self._config
        is_mutual_tls = (
            config.replication.ha_tls_enable
            and config.tls_server_mode is TlsMode.ENFORCING
            and config.tls_server_need_client_auth is ClientAuth.REQUIRE
        )
        return self._is_required and not is_mutual_tls

    def is_allowed(self, host: str) -> bool:
        """Returns whether a slave with this IP address may connect.

        If `haAllowedAddresses` is set, it must also list this machine's own addresses.
        """
        patterns = self._config.replication.ha_allowed_addresses
        if patterns != self._patterns:
            self._patterns, self._matches = list(patterns), [parse_pattern(pattern) for pattern in patterns]
        return not patterns or any(matches(host) for matches in self._matches)

    def secret_of(self, access_key: str) -> str | None:
        """Returns the secret key of an enabled super user; None for any other access key."""
        user = self._users.users.get(access_key)
        if user is None or user.user_type is not UserType.SUPER or user.user_status is not UserStatus.ENABLE:
            return None
        return user.password

    def master_handshake(self, port: int) -> MasterHandshake:
        """Returns the handshake for a slave that has connected to this port of the master."""
        return MasterHandshake(self.secret_of, format_address(self._config.ha_ip, port))

    def slave_handshake(self, address: str) -> SlaveHandshake:
        """Returns the handshake for a connection from this slave to the master at `address`."""
        config = self._config
        is_proved_by_tls = config.replication.ha_tls_enable and config.tls_client_auth_server
        told = "" if address == config.replication.ha_master_address else address
        return SlaveHandshake(self._credentials, told, is_required=self._is_required and not is_proved_by_tls)

    @property
    def _is_required(self) -> bool:
        return self._config.auth.authentication_enabled and not self._config.replication.ha_allow_unsigned
