"""From units of a queue to the records that a pull is answered with: slices of the mapped log (`getMessage`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from gantrymq.kernels import native
from gantrymq.protocol.record import FIXED_SIZE_V4, unpacker
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import MAX_PULL_BYTES, UNIT_SIZE, StoreConfig
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.system.clock import monotonic

logger = logging.getLogger(__name__)

#: A limit isn't taken to be lower than these bytes.
_LEAST_PULL_BYTES = 100
#: A result looks for so long at most at records that have to be tested, s; the next one goes on from there.
_MATCHING_S = 0.003

#: To hand over more of them for each pull would cost more than it spares.
_FEW_CODES = 100

_NOTHING = memoryview(b"")
_unpack_place = unpacker("size", "queue_offset", "physical_offset")


def collect(
    result: GetResult,
    units: bytes,
    log: CommitLog,
    in_memory_from: int,
    config: StoreConfig,
    max_messages: int,
    max_bytes: int,
    tags_codes: frozenset[int] | None,
    matches: Callable[[memoryview], bool] | None,
    *,
    bulk: bool,
) -> None:
    """Puts the records of the units into the result; those that lie side by side in the log become one buffer.

    Where native code is there small ones that lie apart are copied into one: the kernel takes longer for each buffer.

    The result's `next_begin_offset` is the first unit's. What begins before `in_memory_from` counts as on the disk.
    Wanted are records with one of the tags codes for which `matches(record)`; None takes all. Bulk readers have limits
    of their own.
    """
    max_bytes = min(max(max_bytes, _LEAST_PULL_BYTES), MAX_PULL_BYTES)
    log_end = log.position
    physical_offset = UNIT.unpack_from(units)[0]
    on_disk = not bulk and physical_offset < in_memory_from
    if bulk:
        most = min(max_messages, config.max_bulk_transfer_count)
        most_bytes = min(max_bytes, config.max_bulk_transfer_bytes)
    elif not on_disk:
        most = min(max_messages, config.max_transfer_count_on_message_in_memory)
        most_bytes = min(max_bytes, config.max_transfer_bytes_on_message_in_memory)
    else:
        most = min(max_messages, config.max_transfer_count_on_message_in_disk)
        most_bytes = min(max_bytes, config.max_transfer_bytes_on_message_in_disk)
    # For a filter that costs much there is no bound but this.
    matching_ends = 0.0 if matches is None else monotonic() + _MATCHING_S
    buffers = result.buffers
    offset = result.next_begin_offset
    count = total = 0
    # The file of the log that was looked at last, from `base` on; its records end at `view_end`.
    view = _NOTHING
    base = view_end = 0
    # Of the records not yet in a buffer: they stand in `view` from start to end.
    start = end = 0
    first_offset, plain = offset, tags_codes is None and matches is None
    end_offset, last_unit = offset + len(units) // UNIT_SIZE, units[-UNIT_SIZE:]
    numbers = None
    if native is not None and tags_codes is not None and len(tags_codes) <= _FEW_CODES:
        # Only those that are wanted are looked at one by one.
        wanted = max(most if bulk else min(max_messages, config.max_transfer_count_on_message_in_memory), 1)
        numbers_found, units = native.units_with(units, list(tags_codes), wanted)
        numbers = iter(numbers_found)
        if len(numbers_found) == wanted:
            end_offset = offset + numbers_found[-1] + 1
    elif native is not None and plain and not on_disk and (found := log.view_at(physical_offset)) is not None:
        view, base = found
        view_end = min(len(view), log_end - base)
        # Up to what is odd, or in the next file.
        count, total, pieces = native.record_slices(units, offset, view, view_end, base, max(most, 1), most_bytes)
        buffers += [view[piece[0] : piece[1]] if isinstance(piece, tuple) else piece for piece in pieces]
        if count:
            physical_offset = UNIT.unpack_from(units, (count - 1) * UNIT_SIZE)[0]
            units = units[count * UNIT_SIZE :]
            first_offset = offset = offset + count
    following = UNIT.iter_unpack(units)
    for physical_offset, size, tags_code in following:
        if on_disk and physical_offset >= in_memory_from:
            # So are all that follow.
            on_disk = False
            most = min(max_messages, config.max_transfer_count_on_message_in_memory)
            most_bytes = min(max_bytes, config.max_transfer_bytes_on_message_in_memory)
        if (count >= most or total + size > most_bytes) and count:
            break
        if matches is not None and offset > first_offset and monotonic() >= matching_ends:
            break
        if numbers is None:
            offset += 1
        else:
            offset = first_offset + next(numbers) + 1
        if tags_codes is not None and tags_code not in tags_codes:
            if not count:
                result.status = GetStatus.NO_MATCHED_MESSAGE
            continue
        at = physical_offset - base
        if not 0 <= at < view_end:
            if end > start:
                buffers.append(view[start:end])
            start = end = 0
            found = log.view_at(physical_offset)
            if found is None:
                view_end = 0
                if not count:
                    result.status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            view, base = found
            view_end = min(len(view), log_end - base)
            at = physical_offset - base
        # Whether the unit points to the right record: damaged units mustn't serve another message.
        its_size: int | None = None
        if size >= FIXED_SIZE_V4 and at + size <= view_end:
            # No tuple is made to compare with: 0.6 us less for 32 messages.
            its_size, its_offset, its_place = _unpack_place(view, at)
        if its_size != size or its_offset != offset - 1 or its_place != physical_offset:
            if size != FILLER_SIZE:
                logger.warning("queue offset %d points to no record of this queue, at %d", offset - 1, physical_offset)
            if not count:
                result.status = GetStatus.MESSAGE_WAS_REMOVING
            continue
        if matches is not None and not matches(view[at : at + size]):
            if not count:
                result.status = GetStatus.NO_MATCHED_MESSAGE
            continue
        is_next = at == end
        if not is_next:
            if end > start:
                buffers.append(view[start:end])
            start = at
        end = at + size
        count += 1
        total += size
        if is_next and plain:
            # Side by side with the one before; more of them are taken in one step.
            ahead = memoryview(units)[UNIT_SIZE * (offset - first_offset) :][: UNIT_SIZE * max(0, most - count)]
            begin = physical_offset + size
            limit = min(begin + most_bytes - total, in_memory_from if on_disk else log_end)
            more, more_bytes = _side_by_side(ahead, offset, view, base, begin, limit)
            offset += more
            count += more
            total += more_bytes
            end += more_bytes
            next(islice(following, more, more), None)
            if more:
                physical_offset = UNIT.unpack_from(ahead, (more - 1) * UNIT_SIZE)[0]
    else:
        if offset < end_offset and count < most:
            # None of the last ones is wanted.
            offset, physical_offset = end_offset, UNIT.unpack(last_unit)[0]
            if not count:
                result.status = GetStatus.NO_MATCHED_MESSAGE
    if end > start:
        buffers.append(view[start:end])
    if count:
        result.status = GetStatus.FOUND
    result.next_begin_offset = offset
    result.message_count = count
    result.size = total
    result.suggest_pulling_from_slave = physical_offset < in_memory_from


def _side_by_side(
    units: memoryview, offset: int, view: memoryview, base: int, begin: int, limit: int
) -> tuple[int, int]:
    """(count, bytes) of the first units whose records stand one behind the other from `begin` to at most `limit`.

    Only the first and the last record are looked at, and if they are other ones the count is 0: a damaged unit between
    them doesn't fit to both of its neighbours. `offset` is the first unit's; `view` begins at `base` of the log.
    """
    limit = min(limit, base + len(view))
    end = begin
    count = 0
    for physical_offset, size, _ in UNIT.iter_unpack(units):
        following = end + size
        if physical_offset != end or not end < following <= limit:
            break
        end = following
        count += 1
    for n in {0, count - 1} if count else ():
        physical_offset, size, _ = UNIT.unpack_from(units, n * UNIT_SIZE)
        if size < FIXED_SIZE_V4 or _unpack_place(view, physical_offset - base) != (size, offset + n, physical_offset):
            return 0, 0
    return count, end - begin
