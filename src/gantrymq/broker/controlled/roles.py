"""Roles: what a broker is to be, by what its controller has told it (`ReplicasManager.changeBrokerRole`)."""

from __future__ import annotations

from typing import NamedTuple


class Told(NamedTuple):
    """What a controller says of a broker set. Without a master: nobody can be elected at the moment."""

    epoch: int
    master_id: int | None = None
    master_address: str | None = None
    #: Who is in sync; None where the controller didn't say.
    members: frozenset[int] | None = None
    members_epoch: int = 0


class Role(NamedTuple):
    """Who is master in an epoch, at which host:port; nobody while the controller knows none. Epoch 0: not told yet."""

    epoch: int = 0
    master_id: int | None = None
    master_address: str | None = None


class Roles:
    """Of the broker with the controller's id `own_id`. `last_epoch` is the last one that its log has.

    What is older than what is known is never believed: a controller that was deposed tells it, or a message came late.
    """

    def __init__(self, own_id: int) -> None:
        self.own_id = own_id
        self.last_epoch = 0
        self.role = Role()

    @property
    def is_master(self) -> bool:
        return self.role.master_id == self.own_id

    def is_too_old(self, told: Told) -> bool:
        """The log is of a later epoch: the controller has lost its state, or it is another one's."""
        return told.master_id is not None and told.epoch < self.last_epoch

    def told(self, told: Told) -> bool:
        """Whether the broker's role is another one now."""
        now = self.role
        if told.epoch < now.epoch or self.is_too_old(told):
            return False
        if told.master_id is None or not told.master_address:
            # Of this epoch a master may be known, of whom the controller just doesn't know whether it lives.
            new = Role(told.epoch) if told.epoch > now.epoch else now
        else:
            new = Role(told.epoch, told.master_id, told.master_address)
            if told.epoch == now.epoch and now.master_id not in (None, told.master_id):
                # Two masters of one epoch: neither is to be believed more than the first.
                new = now
        self.role = new
        return new != now
