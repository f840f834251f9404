"""The slave's side of one replication connection in controller mode.

The master sends its epochs. The slave truncates its log where the two logs differ. The truncated part was never
acknowledged; otherwise its writer would still be the master. If the master's last epoch is older than the slave's, the
master was replaced and the slave does not follow it. A log from before controller mode has no epochs; its end is
compared as in `link`.
Source: ha/autoswitch/AutoSwitchHAClient. A Java slave also follows a replaced master and truncates its own log for it.
"""

from __future__ import annotations

from collections.abc import Collection

from gantrymq.errors import FrameError, ReplicationError
from gantrymq.logs import peer_log
from gantrymq.protocol.record import Buffer
from gantrymq.replication.autoswitch_frames import (
    AutoSwitchFrameReader,
    Hello,
    MasterEpochs,
    Transfer,
    encode_autoswitch_report,
    encode_hello,
)
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.epochs import Epoch, Epochs
from gantrymq.replication.link import OVERLAP, LinkState, same_log
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore

log = peer_log(__name__)


class NewerEpoch(ReplicationError):
    """Raised if this log has a newer epoch than the master, which was therefore replaced."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class AutoSwitchLink:
    """The state of one connection, with the methods of `Link`. `file` has the epochs of the slave's log."""

    asked_in_vain = False
    #: True if the master's log begins after the end of this log, so this log must be discarded.
    is_too_far_behind = False

    def __init__(self, store: MessageStore, hello: Hello, file: EpochFile) -> None:
        self.state = LinkState.ASKING
        #: All in-sync replicas have the log up to this offset, as the master reported.
        self._confirmed = 0
        self._store = store
        self._replica = store.replica
        self._hello = hello._replace(is_ours=True)
        self._epochs = file.epochs
        self._append, self._save = file.append, file.save
        self._frames = AutoSwitchFrameReader()
        self._waiting: Buffer = b""
        self._replica.restart()
        self._own_end = store.max_physical_offset
        self._begins = self._own_end == store.min_physical_offset
        #: Offset of the next frame. None until the master's epochs arrive.
        self._next: int | None = None
        #: End of the master's log when it sent its epochs.
        self._master_end = 0
        self._reported = -1

    @property
    def confirm_offset(self) -> int:
        """The offset up to which all in-sync replicas have the log, at most the end of this log."""
        return min(self._confirmed, self._store.max_physical_offset)

    def opening(self) -> bytes:
        """Returns the slave's first message."""
        return encode_hello(self._hello)

    def feed(self, data: bytes) -> None:
        """Adds input from the master."""
        self._frames.feed(data)

    def step(self) -> Collection[ConsumeQueue] | None:
        """See `Link.step`."""
        if not self._waiting:
            frame = self._frames.next()
            if frame is None:
                return None
            if isinstance(frame, MasterEpochs):
                if self._next is None:
                    self._agree(frame)
                return ()
            self._waiting = self._checked(frame)
            if not self._waiting:
                return ()
        queues: Collection[ConsumeQueue] = self._replica.append(self._waiting)
        self._waiting = b""
        return queues

    def report(self, flushed: int | None = None, *, is_due: bool = False) -> bytes:
        """See `Link.report`."""
        if self._next is None:
            return b""
        offset = self._next
        if self.state is LinkState.FOLLOWING:
            offset = max(self._store.max_physical_offset if flushed is None else flushed, self._reported)
        elif self._reported >= 0:
            offset = self._reported
        if offset <= self._reported and not is_due:
            return b""
        self._reported = offset
        return encode_autoswitch_report(offset)

    def _agree(self, master: MasterEpochs) -> None:
        """Truncates the log where it differs from the master's, and sets the offset to request."""
        last, store = self._epochs.last, self._store
        if last is not None and master.last_epoch < last.number:
            raise NewerEpoch(
                f"the master's last epoch is {master.last_epoch}, this log's {last.number}: another has become master",
                last.number,
            )
        self._master_end = master.max_offset
        if self._begins:
            if last is not None:
                self._epochs.truncate_from(0)
                self._save()
            self._next = self._own_end
        elif last is None:
            self._next = max(self._own_end - OVERLAP, store.min_physical_offset, 1)
        else:
            self._next = self._own_end = self._cut(Epochs(master.epochs))

    def _cut(self, master: Epochs) -> int:
        """Truncates the log at the last point where both logs are equal. Returns that offset."""
        store, end = self._store, self._store.max_physical_offset
        point = self._epochs.consistent_point(end, master, self._master_end)
        theirs = master.all()
        if point is None and self._epochs.is_before(master) and end <= theirs[0].start_offset:
            self.is_too_far_behind = True
            raise ReplicationError(
                f"the master's log begins with the epoch {theirs[0].number}, this one ends before it"
            )
        if point is None or point < store.min_physical_offset:
            raise ReplicationError(f"this log and the master's have no epoch in common: {self._epochs.all()}, {theirs}")
        if point < end:
            log.warning("%d bytes behind %d are cut off: the master hasn't got them", end - point, point)
            self._replica.truncate(point)
        # Also removes this log's last epoch if nothing was written in it.
        if self._epochs.truncate_from(point, theirs):
            self._save()
        return point

    def _checked(self, frame: Transfer) -> Buffer:
        """Returns the part of a frame to append to the log. Raises the errors of `step`."""
        if self._next is None:
            raise FrameError("the master sends its log before its epochs")
        if not frame.body:
            self._heard(frame)
            return b""
        offset = frame.offset
        if self.state is LinkState.ASKING and self._begins:
            self._begin(offset)
        elif offset != self._next:
            raise FrameError(f"the master sent what is at {offset}, not at {self._next}")
        self._next = offset + len(frame.body)
        known = same_log(self._store, self._own_end, offset, frame.body)
        self.state = LinkState.FOLLOWING if self._next >= self._own_end else LinkState.COMPARING
        self._in_epoch(Epoch(frame.epoch, frame.epoch_start))
        self._confirmed = frame.confirm_offset
        return frame.body[known:]

    def _heard(self, frame: Transfer) -> None:
        """Handles a heartbeat. An empty master sends it with offset -1."""
        assert self._next is not None
        if self.state is not LinkState.ASKING and frame.offset != self._next:
            raise FrameError(f"the master is at {frame.offset}, not at {self._next}")
        if self.state is not LinkState.FOLLOWING and not self._begins and self._next < self._master_end:
            self.is_too_far_behind = True
            raise ReplicationError(f"the master has nothing at {self._next}: its log begins behind it")
        if not self._begins and self._next >= self._own_end:
            self.state = LinkState.FOLLOWING
        self._confirmed = frame.confirm_offset

    def _begin(self, offset: int) -> None:
        """Starts an empty log at the offset of the first bytes."""
        asked = self._next
        if offset != asked and (asked or offset % self._store.config.mapped_file_size_commit_log):
            raise FrameError(f"the master sent what is at {offset}, not at {asked}")
        if offset != self._store.max_physical_offset:
            self._replica.begin_at(offset)
        self._own_end = offset

    def _in_epoch(self, epoch: Epoch) -> None:
        """Records the epoch of the received bytes. Raises FrameError if it is older than the last one."""
        last = self._epochs.last
        if last is not None and epoch.number < last.number:
            raise FrameError(f"bytes of the epoch {epoch.number} after some of {last.number}")
        if last is None or epoch.number > last.number:
            self._append(epoch)
