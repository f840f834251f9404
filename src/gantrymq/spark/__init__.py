"""`format("rocketmq")` for PySpark 4.0 and later: reads and writes RocketMQ topics, in batches and in streams.

    from gantrymq.spark import register, session_builder

    spark = session_builder("orders").getOrCreate()
    register(spark)
    spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("subscribe", "orders").load()

Open `datasource.py` first; `options.py` has the options of Spark only, and `arrow/options.py` all others.

- Spark's interfaces: `reader.py` and `writer.py`. `conditions.py` converts the conditions of a query.
- Planning, pulls, decoding and sending: the package `gantrymq.arrow`, which needs no Spark. It also has the columns.
- The schemas of reads and writes: `read_schema.py` and `write_schema.py`.
- Transactional writes: `half_messages.py`.
- Code for older versions of Spark: `versions.py` and `legacy_stream_reader.py`.
- `bodies` decodes and encodes message bodies as values. `store` is the data source for the files of a broker.
  `metrics.py` exports metrics of streaming queries.
"""

from gantrymq.spark import versions  # noqa: F401  # first, because it raises ImportError for a Spark that is too old
from gantrymq.spark.datasource import RocketMQDataSource, register
from gantrymq.spark.session import java_home, session_builder

__all__ = ["RocketMQDataSource", "java_home", "register", "session_builder"]
