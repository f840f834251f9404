"""The table of columns: their names, their types, their sources in a read and their targets in a write.

The `Origin` of a column determines its source in a read:

| origin | filled by |
|---|---|
| TOPIC, BROKER | `ArrowRecords.columns`, from the pull; the topic from the record if the pull has none |
| FIELD, TIME | `ArrowRecords.columns`, from the field `source` of the record |
| PROPERTY | `ArrowRecords.columns`, from the property `source` |
| MESSAGE_ID | `ArrowRecords.message_ids`, from the property `source` |
| PROPERTY_MAP | `ArrowRecords.columns`, from all properties |
| BODY, BODY_ERROR | `record_batches.record_batches` |

`native_records` and `numpy_records` implement `ArrowRecords`. A read can have two other kinds of columns:
- VALUE, which has the type of the schema of the bodies (Spark alone)
- the properties that the option propertyColumns names

In a write, `brokerName` and `queueId` select the queue. Every other column with a `source` becomes the property of this
name. `row_messages` encodes all columns, and `batch_bodies` the columns that native code supports.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa

from gantrymq.protocol import properties as names


class Origin(Enum):
    """The source of a column in a read."""

    TOPIC = auto()
    BROKER = auto()
    FIELD = auto()
    #: A field in ms since the epoch.
    TIME = auto()
    PROPERTY = auto()
    #: The unique key of the producer. A message without one gets an id from its position in the commit log.
    MESSAGE_ID = auto()
    PROPERTY_MAP = auto()
    BODY = auto()
    BODY_ERROR = auto()


#: Origins with a value in every message.
_IN_EVERY_MESSAGE = {Origin.TOPIC, Origin.BROKER, Origin.FIELD, Origin.TIME, Origin.MESSAGE_ID}


@dataclass(slots=True, frozen=True)
class Column:
    """A column of reads, of writes or of both.

    Attributes:
        name: The name.
        kind: The type in a read.
        origin: The source in a read; None if only writes have the column.
        source: The field of the record (`protocol.record.FIELDS`) or the property with the value.
        written_as: The types that a write accepts; empty if only reads have the column.
    """

    name: str
    kind: pa.DataType
    origin: Origin | None = None
    source: str = ""
    written_as: tuple[pa.DataType, ...] = ()

    @property
    def is_never_null(self) -> bool:
        """Whether the column has a value in each row of a read from brokers."""
        return self.origin in _IN_EVERY_MESSAGE


_STRING = pa.string()
_BINARY = pa.binary()
_MAP = pa.map_(_STRING, _STRING)
#: Times are in UTC, because other zones repeat an hour of each year.
_TIME = pa.timestamp("us", "UTC")

#: The columns of a read are in this order.
TABLE = (
    Column("topic", _STRING, Origin.TOPIC, written_as=(_STRING,)),
    Column("brokerName", _STRING, Origin.BROKER, written_as=(_STRING,)),
    Column("queueId", pa.int32(), Origin.FIELD, "queue_id", (pa.int32(),)),
    Column("queueOffset", pa.int64(), Origin.FIELD, "queue_offset"),
    Column("keys", _STRING, Origin.PROPERTY, names.KEYS, (_STRING, pa.list_(_STRING))),
    Column("tags", _STRING, Origin.PROPERTY, names.TAGS, (_STRING,)),
    Column("body", _BINARY, Origin.BODY, written_as=(_BINARY, _STRING)),
    Column("bornTimestamp", _TIME, Origin.TIME, "born_timestamp"),
    Column("storeTimestamp", _TIME, Origin.TIME, "store_timestamp"),
    Column("msgId", _STRING, Origin.MESSAGE_ID, names.UNIQUE_KEY),
    Column("reconsumeTimes", pa.int32(), Origin.FIELD, "reconsume_times"),
    Column("properties", _MAP, Origin.PROPERTY_MAP, written_as=(_MAP,)),
    Column("bodyError", _STRING, Origin.BODY_ERROR),
    Column("shardingKey", _STRING, source=names.SHARDING_KEY, written_as=(_STRING,)),
    Column("delayLevel", pa.int32(), source=names.DELAY_TIME_LEVEL, written_as=(pa.int32(),)),
    Column("delayMs", pa.int64(), source=names.TIMER_DELAY_MS, written_as=(pa.int64(), pa.int32())),
    Column("deliverAt", _TIME, source=names.TIMER_DELIVER_MS, written_as=(_TIME,)),
)

#: Names of columns that other modules use.
TOPIC, TAGS, BODY, BODY_ERROR, PROPERTIES = "topic", "tags", "body", "bodyError", "properties"
BROKER_NAME, QUEUE_ID = "brokerName", "queueId"
#: With bodyFormat, the body as a value, in reads and in writes.
VALUE = "value"

READ_COLUMNS = {column.name: column for column in TABLE if column.origin is not None}
WRITE_COLUMNS = {column.name: column for column in TABLE if column.written_as}
#: The Arrow types of a read.
ARROW_TYPES: dict[str, pa.DataType] = {name: column.kind for name, column in READ_COLUMNS.items()}


def proper_name(name: str, columns: Iterable[str] = (*READ_COLUMNS, VALUE)) -> str:
    """Returns the spelling of `name` in `columns`, because Spark's names are case-insensitive; else `name`."""
    return next((column for column in columns if column.lower() == name.lower()), name)


def with_names(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Returns the same rows with these column names."""
    return rows if rows.schema.names == list(columns) else pa.RecordBatch.from_arrays(rows.columns, list(columns))
