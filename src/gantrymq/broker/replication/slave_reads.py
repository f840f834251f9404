"""Responses of a slave to pull requests (`PullMessageProcessor`).

If a master is available, a slave sends consumers that have caught up back to the master. A slave's log can end earlier
or start later than the master's. A missing message is therefore no reason to move the consumer's offset
(`DefaultMessageStore.nextOffsetCorrection`, `offsetCheckInSlave=false`).
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.codes import ResponseCode
from gantrymq.store.get_result import GetResult


class SlaveReads:
    """Adjusts pull responses of the slave with `broker_id`. `has_master` returns whether its master is available."""

    def __init__(self, broker_id: int, has_master: Callable[[], bool]) -> None:
        self._broker_id = broker_id
        self._has_master = has_master

    def code(self, code: int, result: GetResult, offset: int) -> int:
        """Returns the response code for a pull from `offset`, and corrects `result`.

        `code` is the code of a master's response. If the slave has no message, the response makes the client pull from
        the master at once. If there is no master, the pull waits for new messages. Java's slave responds at once
        instead, so that its clients repeat the pull without a pause.
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
        """Returns the id of the broker for the next pull of a consumer that has caught up."""
        return MASTER_ID if self._has_master() else self._broker_id
