"""Topics and stores as Arrow batches, for Polars, DuckDB and pandas. Needs pyarrow and numpy, but no Spark.

    from gantrymq.arrow import read_topic

    read_topic("127.0.0.1:9876", "orders", columns=["queueOffset", "body"]).read_pandas()

`topic_reader.py`, `topic_stream.py`, `topic_writer.py` and `store/scan.py` have the functions for users. The Spark
source (`gantrymq.spark`) is based on the other modules. The module of such a function is imported when the function is
first used, so that Spark's Python workers start faster.

- Planning: `planning.py` plans a batch read, `stream_planning.py` advances a stream. Both modules use `queues.py` (the
  queues of the read, and brokers that are down), `partitions.py`, `offsets.py` and `stream_position.py`. `filters.py`
  has the conditions that reduce a read.
- Reads: `rows.py` pulls bytes with `pull.py`. It decodes them into Arrow columns with `arrow_records.py`, without a
  Python object for each record. `columns.py` has every column.
- Writes: `row_messages.py` encodes the rows. `row_sender.py` or `idempotent_sender.py` sends them.
- Requests to brokers and NameServers: `cluster_client.py` and `connection_pool.py`.
- `options.py` has every option. `store` reads the files of a broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gantrymq.extras import missing

try:
    import numpy  # noqa: F401  # an error here names the extra to install
    import pyarrow  # noqa: F401
except ImportError as e:
    raise missing("arrow", "gantrymq.arrow", e) from e

if TYPE_CHECKING:
    from gantrymq.arrow.store.scan import scan_store
    from gantrymq.arrow.topic_reader import read_topic
    from gantrymq.arrow.topic_stream import TopicStream, stream_topic
    from gantrymq.arrow.topic_writer import write_topic

_MODULES = {
    "TopicStream": "gantrymq.arrow.topic_stream",
    "read_topic": "gantrymq.arrow.topic_reader",
    "scan_store": "gantrymq.arrow.store.scan",
    "stream_topic": "gantrymq.arrow.topic_stream",
    "write_topic": "gantrymq.arrow.topic_writer",
}

__all__ = ["TopicStream", "read_topic", "scan_store", "stream_topic", "write_topic"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'gantrymq.arrow' has no attribute {name!r}")
