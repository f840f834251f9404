"""Derives the role of a broker from the controller's responses (`ReplicasManager.changeBrokerRole`)."""

from __future__ import annotations

from typing import NamedTuple


class BrokerSetState(NamedTuple):
    """The state of a broker set, as reported by a controller. Without a master, no broker can be elected at present."""

    epoch: int
    master_id: int | None = None
    master_address: str | None = None
    #: The in-sync brokers; None if the response doesn't contain them.
    members: frozenset[int] | None = None
    members_epoch: int = 0


class Role(NamedTuple):
    """An epoch's master and its host:port, both None without a master. Epoch 0: no controller has reported a role."""

    epoch: int = 0
    master_id: int | None = None
    master_address: str | None = None


class Roles:
    """The role of the broker with the controller's id `own_id`. `last_epoch` is the last epoch of its log.

    A state that is older than the last one is ignored. It comes from a deposed controller, or it arrived late.
    """

    def __init__(self, own_id: int) -> None:
        self.own_id = own_id
        self.last_epoch = 0
        self.role = Role()

    @property
    def is_master(self) -> bool:
        return self.role.master_id == self.own_id

    def is_too_old(self, state: BrokerSetState) -> bool:
        """Returns whether the log has a later epoch than `state`: the controller lost its state or is another one."""
        return state.master_id is not None and state.epoch < self.last_epoch

    def apply(self, state: BrokerSetState) -> bool:
        """Applies the controller's state. Returns whether the role of the broker changed."""
        now = self.role
        if state.epoch < now.epoch or self.is_too_old(state):
            return False
        if state.master_id is None or not state.master_address:
            # The controller may not know whether the master of this epoch is alive. The role stays unchanged.
            new = Role(state.epoch) if state.epoch > now.epoch else now
        else:
            new = Role(state.epoch, state.master_id, state.master_address)
            if state.epoch == now.epoch and now.master_id not in (None, state.master_id):
                # Two masters of one epoch contradict each other. The broker keeps the first one.
                new = now
        self.role = new
        return new != now
