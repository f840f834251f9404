"""Records as Arrow batches: the wanted ones, in pieces of a bounded size; what becomes of bodies that can't be read.

A pull of 4 MiB may hold bodies that inflate to gigabytes. So compressed bodies are inflated one after the other, those
of wanted rows only, and a batch ends when it has INFLATED_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gantrymq.errors import CodecError, CompressionError
from gantrymq.kernels import native
from gantrymq.spark.arrow_records import ARROW_TYPES, BODY, BODY_ERROR, ArrowRecords, Ints
from gantrymq.spark.bodies.body_format import VALUE, BodyOptions
from gantrymq.spark.bodies.decoding import ValueDecoder
from gantrymq.spark.native_records import NativeRecords
from gantrymq.spark.numpy_records import NumpyRecords

#: A batch is full with so many bytes of bodies; the last one may be as large as `compression.MAX_DECOMPRESSED_SIZE`.
INFLATED_BYTES = 16 * 1024 * 1024
_RECORDS: type[ArrowRecords] = NumpyRecords if native is None else NativeRecords


class CorruptBodies(StrEnum):
    """What a read does with a body that doesn't inflate, or has another CRC32 than its record says."""

    FAIL = "fail"
    NULL = "null"


def value_decoder(body: BodyOptions | None, columns: pa.Schema) -> ValueDecoder | None:
    """For the column of values, where one is wanted."""
    if body is None or VALUE not in columns.names:
        return None
    return body.decoder(columns.field(VALUE).type)


def stored_columns(columns: pa.Schema, body: BodyOptions | None) -> list[str]:
    """Those that are made of the records themselves."""
    return [name for name in columns.names if body is None or name != VALUE]


def pulled_records(
    buffer: bytes | memoryview, wanted: Sequence[str], corrupt: CorruptBodies, *, check_crc: bool, part: bool = False
) -> ArrowRecords:
    """Raises RecordError for what is no record, and for another CRC32 where that is to fail."""
    return _RECORDS(buffer, wanted, check_crc=check_crc and corrupt is CorruptBodies.FAIL, part=part)


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
    """The `wanted` rows (booleans, None for all) in batches, none of them empty.

    `topic` is None where the records say it themselves; `values` makes the column VALUE of the bodies. Raises
    CompressionError, and CodecError for a body that has no value, which name the message.
    """
    count = len(records) if wanted is None else pc.sum(wanted).as_py() or 0
    if not count:
        return
    of_bodies = (BODY, BODY_ERROR) if values is None else (BODY, BODY_ERROR, VALUE)
    others = [name for name in columns.names if name not in of_bodies]
    arrays = dict(zip(others, records.columns(others, topic, broker_name), strict=True))
    if wanted is not None:
        arrays = {name: array.filter(wanted) for name, array in arrays.items()}
    if len(others) == len(columns):
        yield pa.RecordBatch.from_arrays([arrays[name] for name in columns.names], schema=columns)
        return
    wrong_crc = records.has_wrong_crc() if check_crc and corrupt is CorruptBodies.NULL else None
    if values is None and not records.has_compressed and (wrong_crc is None or not wrong_crc.any()):
        arrays[BODY] = records.stored_bodies(None if count == len(records) else _numbers(records, wanted))
        arrays[BODY_ERROR] = pa.nulls(count, ARROW_TYPES[BODY_ERROR])
        yield pa.RecordBatch.from_arrays([arrays[name] for name in columns.names], schema=columns)
        return
    numbers = _numbers(records, wanted)
    start = 0
    while start < len(numbers):
        bodies, problems = records.bodies(numbers[start:], INFLATED_BYTES)
        if wrong_crc is not None:
            bodies, problems = _without_wrong(bodies, problems, wrong_crc[numbers[start : start + len(bodies)]])
        if problems and corrupt is CorruptBodies.FAIL:
            place = min(problems)
            raise CompressionError(_told(records, int(numbers[start + place]), problems[place]))
        piece = {name: array.slice(start, len(bodies)) for name, array in arrays.items()}
        if values is not None:
            piece[VALUE], wrong = values.decode(bodies.to_pylist())
            for place, error in wrong.items():
                if corrupt is CorruptBodies.FAIL:
                    raise CodecError(_told(records, int(numbers[start + place]), error))
            problems |= wrong
        piece[BODY] = bodies
        piece[BODY_ERROR] = pa.array([problems.get(place) for place in range(len(bodies))], ARROW_TYPES[BODY_ERROR])
        yield pa.RecordBatch.from_arrays([piece[name] for name in columns.names], schema=columns)
        start += len(bodies)


def _numbers(records: ArrowRecords, wanted: pa.Array | None) -> Ints:
    return np.arange(len(records)) if wanted is None else np.flatnonzero(wanted.to_numpy(zero_copy_only=False))


def _without_wrong(
    bodies: pa.Array, problems: dict[int, str], wrong: npt.NDArray[np.bool_]
) -> tuple[pa.Array, dict[int, str]]:
    """Null where the CRC32 is wrong: what such a body is, or why it doesn't inflate, says nothing."""
    if not wrong.any():
        return bodies, problems
    told = dict.fromkeys(np.flatnonzero(wrong).tolist(), "the body has another CRC32 than its record says")
    return pc.if_else(pa.array(wrong), pa.scalar(None, bodies.type), bodies), problems | told


def _told(records: ArrowRecords, i: int, problem: str) -> str:
    return (
        f"offset {records.queue_offsets[i]} of queue {records.queue_ids[i]}: {problem}; "
        'option("corruptBodies", "null") reads a null instead'
    )
