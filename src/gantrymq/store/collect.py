"""Collects the records of queue units for a pull response (`getMessage`). The records are slices of the mapped log."""

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

#: A lower byte limit in a request is raised to this value.
_LEAST_PULL_BYTES = 100
#: Maximum time to evaluate `matches` for one result, in seconds. The next request continues after the last checked
#: record.
MATCHING_S = 0.003

#: Above this number of tags codes, passing them to native code on each pull costs more time than it saves.
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
    """Adds the records of the units to `result`. Adjacent records in the log become one buffer.

    If native code is available, small records that are not adjacent are copied into one buffer. The kernel needs more
    time for many buffers.

    Args:
        result: Its `next_begin_offset` must be the queue offset of the first unit.
        units: The queue units to read.
        log: The commit log.
        in_memory_from: Records before this physical offset count as not cached, so that lower limits apply.
        config: The transfer limits.
        max_messages: Maximum number of records.
        max_bytes: Maximum size of the records.
        tags_codes: Only records with one of these tags codes are returned; None accepts all.
        matches: Only records for which it returns true are returned; None accepts all.
        bulk: Whether to apply the limits for bulk readers.
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
    # Limits the time for an expensive filter.
    matching_ends = 0.0 if matches is None else monotonic() + MATCHING_S
    buffers = result.buffers
    offset = result.next_begin_offset
    count = total = 0
    # The log file that was read last. Its first byte has the offset `base`, and its records end at `view_end`.
    view = _NOTHING
    base = view_end = 0
    # The adjacent records that are not in a buffer yet, as a range of `view`.
    start = end = 0
    first_offset, plain = offset, tags_codes is None and matches is None
    end_offset, last_unit = offset + len(units) // UNIT_SIZE, units[-UNIT_SIZE:]
    numbers, all_units = None, units
    if native is not None and tags_codes is not None and len(tags_codes) <= _FEW_CODES:
        # Native code selects the units with these tags codes.
        wanted = max(most if bulk else min(max_messages, config.max_transfer_count_on_message_in_memory), 1)
        numbers_found, units = native.units_with(units, list(tags_codes), wanted)
        numbers = iter(numbers_found)
        if len(numbers_found) == wanted:
            end_offset = offset + numbers_found[-1] + 1
    elif native is not None and plain and not on_disk and (found := log.view_at(physical_offset)) is not None:
        view, base = found
        view_end = min(len(view), log_end - base)
        # Stops at the end of the file and at units that need a closer check.
        count, total, pieces = native.record_slices(units, offset, view, view_end, base, max(most, 1), most_bytes)
        buffers += [view[piece[0] : piece[1]] if isinstance(piece, tuple) else piece for piece in pieces]
        if count:
            physical_offset = UNIT.unpack_from(units, (count - 1) * UNIT_SIZE)[0]
            units = units[count * UNIT_SIZE :]
            first_offset = offset = offset + count
    following = UNIT.iter_unpack(units)
    for physical_offset, size, tags_code in following:
        if on_disk and physical_offset >= in_memory_from:
            if numbers is not None and count >= most:
                # The tags code of the next unit is not wanted. If that unit is on disk, the read ends there.
                (next_offset, *_) = UNIT.unpack_from(all_units, (offset - first_offset) * UNIT_SIZE)
                if next_offset < in_memory_from:
                    break
            # All later units are in memory, too.
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
        # Checks that the unit points to its own record. A damaged unit must not return a different message.
        its_size: int | None = None
        if size >= FIXED_SIZE_V4 and at + size <= view_end:
            # Unpacking without a comparison tuple saves 0.6 us for 32 messages.
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
            # The record is adjacent to the one before. Further adjacent records are added in one step.
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
            # None of the remaining units matches.
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
    """Returns the number and size in bytes of leading units whose records are adjacent in the log.

    The records start at `begin` and must end at or before `limit`. `offset` is the queue offset of the first unit.
    `view` starts at the physical offset `base`. Only the first and the last record are checked: a damaged unit between
    them would not be adjacent to both neighbours. If a check fails, the result is (0, 0).
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
