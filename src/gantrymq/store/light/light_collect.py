"""Collects the records of a light queue's units for a pull response.

A record has the queue offset of its own topic, so `collect` would take these units for damaged ones. The records are
rarely adjacent in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gantrymq.errors import RecordError
from gantrymq.protocol.multi_dispatch import queue_offsets
from gantrymq.protocol.record import FIXED_SIZE_V4, decode_record, unpacker
from gantrymq.store.collect import MATCHING_S
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.config import StoreConfig
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.system.clock import monotonic

logger = logging.getLogger(__name__)

_unpack_place = unpacker("size", "physical_offset")


def collect_light(
    name: str,
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
    """Adds the records of the units of the light queue `name` to `result`. The other arguments are those of `collect`.

    A record that doesn't name the queue and its offset is left out, so that damage shows no other queue's messages.
    """
    most, most_bytes = _limits(config, UNIT.unpack_from(units)[0] >= in_memory_from, bulk=bulk)
    most, most_bytes = min(max_messages, most), min(max_bytes, most_bytes)
    matching_ends = 0.0 if matches is None else monotonic() + MATCHING_S
    status = GetStatus.NO_MATCHED_MESSAGE
    begin = offset = result.next_begin_offset
    count = total = 0
    last = 0
    for physical_offset, size, tags_code in UNIT.iter_unpack(units):
        if count and (count >= most or total + size > most_bytes):
            break
        if matches is not None and offset > begin and monotonic() >= matching_ends:
            break
        here, offset = offset, offset + 1
        last = physical_offset
        if tags_codes is not None and tags_code not in tags_codes:
            continue
        record = _record(log, physical_offset, size, name, here)
        if record is None:
            status = GetStatus.MESSAGE_WAS_REMOVING
            if size != FILLER_SIZE:
                logger.warning("a unit of a light queue points to no record of it, at %d", physical_offset)
            continue
        if matches is not None and not matches(record):
            continue
        result.buffers.append(record)
        count += 1
        total += size
    result.status = GetStatus.FOUND if count else status
    result.next_begin_offset = offset
    result.message_count = count
    result.size = total
    result.suggest_pulling_from_slave = last < in_memory_from


def _limits(config: StoreConfig, in_memory: bool, *, bulk: bool) -> tuple[int, int]:
    if bulk:
        return config.max_bulk_transfer_count, config.max_bulk_transfer_bytes
    if in_memory:
        return config.max_transfer_count_on_message_in_memory, config.max_transfer_bytes_on_message_in_memory
    return config.max_transfer_count_on_message_in_disk, config.max_transfer_bytes_on_message_in_disk


def _record(log: CommitLog, physical_offset: int, size: int, name: str, offset: int) -> memoryview | None:
    found = log.view_at(physical_offset)
    if found is None or size < FIXED_SIZE_V4:
        return None
    view, base = found
    at = physical_offset - base
    if at + size > min(len(view), log.position - base) or _unpack_place(view, at) != (size, physical_offset):
        return None
    try:
        properties = decode_record(view, at, check_crc=False).properties
    except RecordError:
        return None
    if queue_offsets(properties).get(name) != offset:
        return None
    return view[at : at + size]
