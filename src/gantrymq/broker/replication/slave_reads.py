"""Pulls at a slave: who has read on here goes back to the master when that is there (`PullMessageProcessor`).

A slave may be behind, or begin later than its master: what it lacks is no reason to move a consumer's offset
(`DefaultMessageStore.nextOffsetCorrection`, offsetCheckInSlave=false).
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.codes import ResponseCode
from gantrymq.store.get_result import GetResult


class SlaveReads:
    """What the slave with `broker_id` says to those who pull; `has_master` tells whether its master is there."""

    def __init__(self, broker_id: int, has_master: Callable[[], bool]) -> None:
        self._broker_id = broker_id
        self._has_master = has_master

    def code(self, code: int, result: GetResult, offset: int) -> int:
        """The code for a pull from `offset` for which a master would answer `code`; corrects `result`.

        Where nothing is found the master is asked at once. While there is none, such pulls are held, which Java's slave
        answers at once, again and again.
        """
        if code == ResponseCode.SUCCESS:
            return code
        is_moved = code == ResponseCode.PULL_OFFSET_MOVED
        if is_moved:
            result.next_begin_offset = offset
        if self._has_master() and not result.suggest_pulling_from_slave:
            return ResponseCode.PULL_RETRY_IMMEDIATELY
        return ResponseCode.PULL_NOT_FOUND if is_moved else code

    def suggested_broker(self) -> int:
        """Where to pull next, for one who isn't far behind."""
        return MASTER_ID if self._has_master() else self._broker_id
