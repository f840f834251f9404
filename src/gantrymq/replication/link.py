"""The slave's side of one replication connection: uses the store's files, but no socket and no clock.

A slave starts by requesting a physical offset. If its log is not empty, it starts `OVERLAP` bytes before the end. The
received bytes must equal the existing ones. Otherwise the logs differ and the slave stops following this master. A Java
slave does not compare. It appends what it receives.

An empty slave uses the limits in a GantryMQ master's greeting. A Java master sends its log from any existing offset,
but it interprets 0 as "the last file". To get a log from 0 on, the slave requests offset 1. The missing byte is known:
it is the first byte of a record's size, which is 0 for records under 16 MiB. If the master has no data at 1, it sends
only heartbeats. Then the slave requests the last file.
Source: ha/DefaultHAClient.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from gantrymq.errors import FrameError, ReplicationError
from gantrymq.logs import peer_log
from gantrymq.protocol.record import Buffer
from gantrymq.replication.frames import VERSION, Frame, FrameReader, Greeting, encode_opening, encode_report
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore

log = peer_log(__name__)

#: Number of bytes at the end of its log that a slave requests again and compares.
OVERLAP = 4096
#: Requested offset for which a Java master sends its last file.
LAST_FILE = 0
#: Requested offset to get a Java master's log from 0 on.
WHOLE_LOG = 1


class LinkState(Enum):
    #: The first frame has not arrived yet.
    ASKING = "asking"
    #: The received bytes overlap the slave's log and are compared with it.
    COMPARING = "comparing"
    #: The received bytes are new.
    FOLLOWING = "following"


class Link:
    """The state of one connection. `step` handles one frame, and `report` encodes the slave's progress.

    If `whole_log` is set, an empty store copies all of the master's log, otherwise only the last file. `first_offset`
    is the start of a Java master's log, if known. GantryMQ masters send this offset in the greeting.
    """

    #: None, because all messages are visible at once without a controller.
    confirm_offset: int | None = None

    def __init__(
        self, store: MessageStore, broker_id: int, *, whole_log: bool = True, first_offset: int | None = None
    ) -> None:
        self.state = LinkState.ASKING
        #: True if the master has no data at WHOLE_LOG. The next link should request its last file.
        self.asked_in_vain = False
        #: Always false: if the master's log begins after the end of the slave's, the link discards the slave's log.
        self.is_too_far_behind = False
        self._store = store
        self._replica = store.replica
        self._broker_id = broker_id
        self._whole_log = whole_log
        self._frames = FrameReader()
        #: Received bytes that the store could not accept yet.
        self._waiting: Buffer = b""
        self._replica.restart()
        #: End of the slave's log at the start. Received bytes before it are compared.
        self._own_end = store.max_physical_offset
        #: True if there is nothing to compare: the log will begin at the first received byte.
        self._begins = self._own_end == store.min_physical_offset
        if first_offset is not None and self._own_end < first_offset and (whole_log or not self._begins):
            self._own_end, self._begins = first_offset, True
        self._has_heard = False
        #: Offset of the next frame; before the first frame, the requested offset.
        self._next = self._reported = self._wanted()

    def opening(self) -> bytes:
        """Returns the slave's first message."""
        return encode_opening(self._next)

    @property
    def is_ours(self) -> bool:
        """True if the master has identified itself as GantryMQ."""
        return self._frames.checked

    def feed(self, data: bytes) -> None:
        """Adds input from the master."""
        self._frames.feed(data)

    def step(self) -> Collection[ConsumeQueue] | None:
        """Handles the next complete frame. Returns the queues that got messages, or None if there is no complete frame.

        The caller may call it again after StoreBusy and StoreFull, but not after other errors.

        Raises:
            FrameError, RecordError: The input is damaged or out of sequence. A new connection may receive it intact.
            ReplicationError: The slave cannot follow this master.
            StoreError: The errors of `Replica.append`.
        """
        if not self._waiting:
            frame = self._frames.next()
            if frame is None:
                return None
            self._has_heard = True
            if isinstance(frame, Greeting):
                self._greeted(frame)
                return ()
            self._waiting = self._checked(frame)
            if not self._waiting:
                return ()
        queues: Collection[ConsumeQueue] = self._replica.append(self._waiting)
        self._waiting = b""
        return queues

    def report(self, flushed: int | None = None, *, is_due: bool = False) -> bytes:
        """Returns the encoded progress of the slave, or b"" if the master already has it and no heartbeat `is_due`.

        `flushed` is the end of the log on disk, if only flushed data counts.
        """
        if not self._has_heard:
            # The master's first frame determines the format.
            return b""
        if self.state is LinkState.FOLLOWING:
            offset = self._store.max_physical_offset if flushed is None else flushed
            # A reported offset never decreases: the compared part was already reported.
            offset = max(offset, self._reported)
        else:
            offset = self._next if self.state is LinkState.ASKING else self._reported
        if offset <= self._reported and not is_due:
            return b""
        self._reported = offset
        return encode_report(offset, self._broker_id, checked=self.is_ours)

    def _wanted(self) -> int:
        """Returns the offset to request before the master has sent anything."""
        store = self._store
        if not self._begins:
            return max(self._own_end - OVERLAP, store.min_physical_offset, 1)
        if self._own_end > 0:
            return self._own_end
        return WHOLE_LOG if self._whole_log else LAST_FILE

    def _greeted(self, master: Greeting) -> None:
        """Sets the offset to request, from the limits of a GantryMQ master's log."""
        store, size = self._store, self._store.config.mapped_file_size_commit_log
        if master.version < VERSION or master.file_size != size:
            raise ReplicationError(
                f"the master's log has files of {master.file_size} bytes (mappedFileSizeCommitLog), this one of {size}"
            )
        if self._own_end > master.max_offset:
            raise ReplicationError(
                f"the master's log ends at {master.max_offset}, this one at {self._own_end}: it isn't this one's master"
            )
        if self._own_end < master.min_offset or (self._begins and not self._own_end):
            begin = master.min_offset if self._whole_log else max(master.max_offset // size * size, master.min_offset)
            self._own_end, self._begins = begin, True
        if self._begins:
            self._next = self._own_end
        else:
            self._next = max(self._own_end - OVERLAP, store.min_physical_offset, master.min_offset)
        # The reported offset was for a Java master.
        self._reported = -1

    def _begin(self, offset: int) -> None:
        """Starts the log at the offset of the first received bytes. Discards existing messages."""
        store, replica = self._store, self._replica
        end = store.max_physical_offset
        if end != store.min_physical_offset:
            log.warning(
                "the master's log begins at %d, and this log ends at %d: it is discarded and copied again",
                offset,
                end,
            )
            replica.begin_anew(offset)
        elif offset != end:
            replica.begin_at(offset)
        self._own_end = offset

    def _checked(self, frame: Frame) -> Buffer:
        """Returns the part of a frame to append to the log. Raises the errors of `step`."""
        offset, body = frame
        if self.state is LinkState.ASKING:
            return self._first(offset, body)
        if offset != self._next:
            raise FrameError(f"the master sent what is at {offset}, not at {self._next}")
        self._next += len(body)
        if self.state is LinkState.FOLLOWING:
            return body
        if not body:
            raise ReplicationError(
                f"the master's log ends at {self._next}, this one at {self._own_end}: it isn't this one's master"
            )
        return self._compared(offset, body)

    def _first(self, offset: int, body: Buffer) -> Buffer:
        size = self._store.config.mapped_file_size_commit_log
        is_last_file = self._next == LAST_FILE and not self.is_ours and self._begins
        if offset != self._next and not (is_last_file and offset > 0 and offset % size == 0):
            raise FrameError(f"the master sent what is at {offset}, not at {self._next}")
        if not body:
            self._has_nothing()
            return b""
        if self._begins:
            if offset == WHOLE_LOG and not self.is_ours:
                offset, body = 0, b"\0" + body
            self._begin(offset)
        self._next = offset + len(body)
        return self._compared(offset, body)

    def _has_nothing(self) -> None:
        """Handles a heartbeat that arrives instead of the requested data."""
        if self._begins:
            self.asked_in_vain = self._next == WHOLE_LOG and not self.is_ours
        elif self._next < self._own_end:
            raise ReplicationError(
                f"the master has nothing at {self._next}, and this log goes from {self._store.min_physical_offset} to "
                f"{self._own_end}: it isn't this one's master, or begins behind it"
            )

    def _compared(self, offset: int, body: Buffer) -> Buffer:
        """Returns the bytes after the end of the slave's log. All bytes before it must be equal."""
        known = same_log(self._store, self._own_end, offset, body)
        self.state = LinkState.FOLLOWING if self._next >= self._own_end else LinkState.COMPARING
        return body[known:]


def same_log(store: MessageStore, end: int, offset: int, body: Buffer) -> int:
    """Returns the number of bytes of `body`, at `offset`, that a log with this `end` already has.

    Raises ReplicationError if the log has different bytes there.
    """
    known = min(len(body), max(end - offset, 0))
    at = 0
    while at < known:
        own = store.log_slice(offset + at, known - at)
        if own is None or own != body[at : at + len(own)]:
            raise ReplicationError(
                f"this log, which ends at {end}, has something else than the master's behind {offset + at}: they "
                "aren't the same"
            )
        at += len(own)
    return known
