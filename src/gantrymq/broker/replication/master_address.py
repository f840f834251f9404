"""Selects the master that a slave follows, from the NameServers' responses (`handleRegisterBrokerResult`)."""

from __future__ import annotations

from typing import NamedTuple


class Master(NamedTuple):
    """The address of a master and the address of its HA port, both as host:port."""

    address: str
    ha_address: str


class MasterAddress:
    """Caches the master that each NameServer reports for this broker name, and selects one of them.

    `own_address` is never selected. If `haMasterAddress` is configured, the log always comes from this address.
    Metadata is still copied from the address of the selected master.
    """

    def __init__(self, own_address: str, ha_master_address: str) -> None:
        self._own_address = own_address
        self._fixed = ha_master_address
        self._reported: dict[str, Master] = {}
        self._master: Master | None = None

    def reported(self, name_server: str, address: str | None, ha_address: str | None) -> None:
        """Stores the response of a NameServer. `address` is None if the NameServer has no master for this name."""
        self._reported.pop(name_server, None)
        if address and address != self._own_address:
            self._reported[name_server] = Master(address, ha_address or "")
        if self._master is None or self._master not in self._reported.values():
            self._master = next(iter(self._reported.values()), None)

    def forget(self, name_server: str) -> None:
        """Removes the response of a NameServer that is no longer configured."""
        self.reported(name_server, None, None)

    @property
    def address(self) -> str | None:
        """The selected master's address; None if no NameServer reports a master."""
        return None if self._master is None else self._master.address

    @property
    def ha_address(self) -> str | None:
        """The address to replicate the log from; None if it is unknown."""
        return self._fixed or (None if self._master is None else self._master.ha_address or None)
