"""Decodes selected records of a buffer into Arrow batches of limited size, and applies the policy for corrupt bodies.

A pull of 4 MiB can have bodies that decompress to gigabytes. Bodies are therefore decompressed one after the other, and
a batch ends when it has INFLATED_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.arrow.arrow_records import ArrowRecords, Ints
from gantrymq.arrow.body_values import BodyDecoding, CorruptBodies, ValueDecoder
from gantrymq.arrow.columns import ARROW_TYPES, BODY, BODY_ERROR, VALUE
from gantrymq.arrow.native_records import NativeRecords
from gantrymq.arrow.numpy_records import NumpyRecords
from gantrymq.errors import CodecError, CompressionError
from gantrymq.kernels import native
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE

#: A batch is full if its bodies have this many bytes. It can exceed the limit by one body of up to
#: the option rocketmq.client.max_body_size, 32 MiB by default.
INFLATED_BYTES = 16 * 1024 * 1024
_RECORDS: type[ArrowRecords] = NumpyRecords if native is None else NativeRecords


def value_decoder(body: BodyDecoding | None, columns: pa.Schema) -> ValueDecoder | None:
    """Returns the decoder of the column `value`; None if the read doesn't have this column."""
    if body is None or VALUE not in columns.names:
        return None
    return body.decoder(columns.field(VALUE).type)


def stored_columns(columns: pa.Schema, body: BodyDecoding | None) -> list[str]:
    """Returns the columns that the records contain: all but the decoded values of bodies."""
    return [name for name in columns.names if body is None or name != VALUE]


def pulled_records(
    buffer: bytes | memoryview,
    wanted: Sequence[str],
    corrupt: CorruptBodies,
    *,
    check_crc: bool,
    part: bool = False,
    max_body_size: int = MAX_DECOMPRESSED_SIZE,
) -> ArrowRecords:
    """Parses the records of a buffer.

    Raises RecordError for an invalid record and, if the policy is to fail, for a body with a wrong CRC32.
    """
    checks = check_crc and corrupt is CorruptBodies.FAIL
    return _RECORDS(buffer, wanted, check_crc=checks, part=part, max_body_size=max_body_size)


def record_batches(
    records: ArrowRecords,
    columns: pa.Schema,
    topic: str | None,
    broker_name: str | None,
    wanted: pa.Array | None,
    corrupt: CorruptBodies,
    values: ValueDecoder | None = None,
    *,
    check_crc: bool,
) -> Iterator[pa.RecordBatch]:
    """Yields the selected rows in batches. No batch is empty.

    Args:
        records: The records.
        columns: The columns of the batches.
        topic: The topic of all records; None to read it from each record.
        broker_name: The broker of all records.
        wanted: The selected rows, as booleans; None for all.
        corrupt: The policy for corrupt bodies.
        values: Decodes the column VALUE.
        check_crc: If true and the policy is `null`, compares each body with its CRC32.

    Raises:
        CompressionError: A body can't be decompressed. The error names the message.
        CodecError: A body can't be decoded into a value. The error names the message.
    """
    count = len(records) if wanted is None else pc.sum(wanted).as_py() or 0
    if not count:
        return
    names = columns.names
    of_bodies = (BODY, BODY_ERROR) if values is None else (BODY, BODY_ERROR, VALUE)
    others = [name for name in names if name not in of_bodies]
    arrays = dict(zip(others, records.columns(others, topic, broker_name), strict=True))
    if wanted is not None:
        arrays = {name: array.filter(wanted) for name, array in arrays.items()}
    if len(others) == len(names):
        yield pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=columns)
        return
    wrong_crc = records.has_wrong_crc() if check_crc and corrupt is CorruptBodies.NULL else None
    if values is None and not records.has_compressed and (wrong_crc is None or not wrong_crc.any()):
        arrays[BODY] = records.stored_bodies(None if count == len(records) else _numbers(records, wanted))
        if BODY_ERROR in names:
            arrays[BODY_ERROR] = pa.nulls(count, ARROW_TYPES[BODY_ERROR])
        yield pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=columns)
        return
    numbers = _numbers(records, wanted)
    start = 0
    while start < len(numbers):
        bodies, problems = records.bodies(numbers[start:], INFLATED_BYTES)
        if wrong_crc is not None:
            bodies, problems = _without_wrong(bodies, problems, wrong_crc[numbers[start : start + len(bodies)]])
        if problems and corrupt is CorruptBodies.FAIL:
            index = min(problems)
            raise CompressionError(_name_message(records, int(numbers[start + index]), problems[index]))
        piece = {name: array.slice(start, len(bodies)) for name, array in arrays.items()}
        if values is not None:
            piece[VALUE], wrong = values.decode(bodies.to_pylist())
            for index, error in wrong.items():
                if corrupt is CorruptBodies.FAIL:
                    raise CodecError(_name_message(records, int(numbers[start + index]), error))
            problems |= wrong
        piece[BODY] = bodies
        piece[BODY_ERROR] = pa.array([problems.get(index) for index in range(len(bodies))], ARROW_TYPES[BODY_ERROR])
        yield pa.RecordBatch.from_arrays([piece[name] for name in names], schema=columns)
        start += len(bodies)


def _numbers(records: ArrowRecords, wanted: pa.Array | None) -> Ints:
    return np.arange(len(records)) if wanted is None else np.flatnonzero(wanted.to_numpy(zero_copy_only=False))


def _without_wrong(
    bodies: pa.Array, problems: dict[int, str], wrong: npt.NDArray[np.bool_]
) -> tuple[pa.Array, dict[int, str]]:
    """Replaces bodies with a wrong CRC32 by null. The wrong CRC32 becomes their only problem."""
    if not wrong.any():
        return bodies, problems
    wrong_crc = dict.fromkeys(np.flatnonzero(wrong).tolist(), "the body has another CRC32 than its record says")
    return pc.if_else(pa.array(wrong), pa.scalar(None, bodies.type), bodies), problems | wrong_crc


def _name_message(records: ArrowRecords, i: int, problem: str) -> str:
    return (
        f"offset {records.queue_offsets[i]} of queue {records.queue_ids[i]}: {problem}; "
        "to get a null instead, set the option corruptBodies=null"
    )
