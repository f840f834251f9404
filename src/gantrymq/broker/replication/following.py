"""Which broker a slave follows, by what the NameServers answer to its registrations (`handleRegisterBrokerResult`)."""

from __future__ import annotations

from typing import NamedTuple


class Master(NamedTuple):
    """A master's host:port, and where it listens for slaves."""

    address: str
    ha_address: str


class Following:
    """What each NameServer says of the master of this broker's name; `own_address` is no master to follow.

    With haMasterAddress in the configuration the log comes from there, whatever they say; tables need the master's
    own address all the same.
    """

    def __init__(self, own_address: str, ha_master_address: str) -> None:
        self._own_address = own_address
        self._fixed = ha_master_address
        self._told: dict[str, Master] = {}
        self._master: Master | None = None

    def told(self, name_server: str, address: str | None, ha_address: str | None) -> None:
        """A NameServer's answer; one that knows no master any more says neither."""
        self._told.pop(name_server, None)
        if address and address != self._own_address:
            self._told[name_server] = Master(address, ha_address or "")
        if self._master is None or self._master not in self._told.values():
            self._master = next(iter(self._told.values()), None)

    def forget(self, name_server: str) -> None:
        """It isn't asked any more."""
        self.told(name_server, None, None)

    @property
    def address(self) -> str | None:
        """The master's address; None while no NameServer knows one."""
        return None if self._master is None else self._master.address

    @property
    def ha_address(self) -> str | None:
        """Where the log comes from; None while nobody knows."""
        return self._fixed or (None if self._master is None else self._master.ha_address or None)
