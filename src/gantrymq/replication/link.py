"""Link: what one connection of a slave with its master has come to; the store's files, but no socket and no time.

A link begins by asking for a physical offset. A log that has something isn't asked to go on at its end but `OVERLAP`
bytes before it: what comes must be what is there, else the two logs aren't the same, and the slave follows no further.
Java's slave doesn't look, and writes what it gets behind what it has.

What an empty slave asks for: of our master what it says to have (`Greeting`). Java's master sends from whatever offset
it is asked for, if it has it, but takes 0 for "your last file". So who wants the whole of a log that begins at 0 asks
for 1; the byte before it is known: the first of a record's four for its size, 0 in each record under 16 MiB. Where
there is nothing at 1 nothing comes but signs of life; then the slave asks for the last file, too.
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

#: So much of its own log a slave has sent again, and compares.
OVERLAP = 4096
#: What Java's master answers from the start of its last file.
LAST_FILE = 0
#: What asks Java's master for a log from 0 on.
WHOLE_LOG = 1


class LinkState(Enum):
    #: The first frame hasn't come yet.
    ASKING = "asking"
    #: The end of the slave's own log comes again.
    COMPARING = "comparing"
    #: What comes is new.
    FOLLOWING = "following"


class Link:
    """Of one connection. `step` does the work of one frame, `report` says what the master is to be told.

    `whole_log`: an empty store wants all that the master has, not its last file alone. `first_offset` is where a Java
    master's log begins, if that is known; ours says it itself.
    """

    #: Without a controller nothing is held back.
    confirm_offset: int | None = None

    def __init__(
        self, store: MessageStore, broker_id: int, *, whole_log: bool = True, first_offset: int | None = None
    ) -> None:
        self.state = LinkState.ASKING
        #: The master has nothing at WHOLE_LOG: another link is to ask for its last file.
        self.asked_in_vain = False
        #: It begins anew by itself.
        self.is_too_far_behind = False
        self._store = store
        self._replica = store.replica
        self._broker_id = broker_id
        self._whole_log = whole_log
        self._frames = FrameReader()
        #: Bytes that the store had no room for yet.
        self._waiting: Buffer = b""
        self._replica.restart()
        #: Where the slave's own log ends, up to which is compared what comes.
        self._own_end = store.max_physical_offset
        #: It has nothing that could be compared: the log begins where the first bytes belong.
        self._begins = self._own_end == store.min_physical_offset
        if first_offset is not None and self._own_end < first_offset and (whole_log or not self._begins):
            self._own_end, self._begins = first_offset, True
        self._has_heard = False
        #: The offset of the next frame; before the first one, what was asked for.
        self._next = self._reported = self._wanted()

    def opening(self) -> bytes:
        """What the slave says first."""
        return encode_opening(self._next)

    @property
    def is_ours(self) -> bool:
        """The master has said that it is one of ours."""
        return self._frames.checked

    def feed(self, data: bytes) -> None:
        """What the master sent."""
        self._frames.feed(data)

    def step(self) -> Collection[ConsumeQueue] | None:
        """Does the work of the next whole frame; the queues that got messages, None where there is no frame yet.

        Raises FrameError, RecordError for what is damaged or out of place: with another link it may come whole;
        ReplicationError where the slave can't follow this master; what `Replica.append` raises of StoreErrors. After
        StoreBusy and StoreFull, and only then, it may be called again.
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
        """What tells the master how far the slave is, if it doesn't know yet or it `is_due`.

        `flushed`: no more than that is on the disk, and only what is there counts.
        """
        if not self._has_heard:
            # Nobody knows in which form.
            return b""
        if self.state is LinkState.FOLLOWING:
            offset = self._store.max_physical_offset if flushed is None else flushed
            # Not less than it said it has: what is compared was there before.
            offset = max(offset, self._reported)
        else:
            offset = self._next if self.state is LinkState.ASKING else self._reported
        if offset <= self._reported and not is_due:
            return b""
        self._reported = offset
        return encode_report(offset, self._broker_id, checked=self.is_ours)

    def _wanted(self) -> int:
        """What is asked for before the master has said anything."""
        store = self._store
        if not self._begins:
            return max(self._own_end - OVERLAP, store.min_physical_offset, 1)
        if self._own_end > 0:
            return self._own_end
        return WHOLE_LOG if self._whole_log else LAST_FILE

    def _greeted(self, master: Greeting) -> None:
        """Our master has said what its log is: asks for what fits."""
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
        # What was asked for was meant for Java's master.
        self._reported = -1

    def _begin(self, offset: int) -> None:
        """The log begins there: its first bytes have come."""
        store, replica = self._store, self._replica
        end = store.max_physical_offset
        if end != store.min_physical_offset:
            log.warning(
                "the master's log begins at %d, this one ends at %d: it begins anew, its messages are given up",
                offset,
                end,
            )
            replica.begin_anew(offset)
        elif offset != end:
            replica.begin_at(offset)
        self._own_end = offset

    def _checked(self, frame: Frame) -> Buffer:
        """What of a frame is to be put into the log. Raises as `step` does."""
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
        """A sign of life in place of what was asked for."""
        if self._begins:
            self.asked_in_vain = self._next == WHOLE_LOG and not self.is_ours
        elif self._next < self._own_end:
            raise ReplicationError(
                f"the master has nothing at {self._next}, and this log goes from {self._store.min_physical_offset} to "
                f"{self._own_end}: it isn't this one's master, or begins behind it"
            )

    def _compared(self, offset: int, body: Buffer) -> Buffer:
        """What is behind the end of the slave's own log; before it all must be equal."""
        known = same_log(self._store, self._own_end, offset, body)
        self.state = LinkState.FOLLOWING if self._next >= self._own_end else LinkState.COMPARING
        return body[known:]


def same_log(store: MessageStore, end: int, offset: int, body: Buffer) -> int:
    """How many bytes of `body`, which are at `offset`, a log that ends at `end` has.

    Raises ReplicationError when it has others.
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
