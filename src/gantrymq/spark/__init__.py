"""`format("rocketmq")` for PySpark 4.0 and later: RocketMQ topics as batch and streaming tables, both ways.

    from gantrymq.spark import register, session_builder

    spark = session_builder("orders").getOrCreate()
    register(spark)
    spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("subscribe", "orders").load()

Open `datasource.py` first; every option is in `options.py`. `reader.py` and `writer.py` are Spark's interfaces over
`gantrymq.client`. The driver's part of a read is `planning.py` or, for streams, `stream_planning.py`, with `queues.py`
(which there are, and who is away), `partitions.py` and `offsets.py`. A task's is `rows.py`, which has `pull.py` fetch
bytes over `connections.py` and `arrow_records.py` turn them into Arrow columns without a Python object per record. What
older versions of Spark lack is in `versions.py` and `older_stream.py`; bodies that are read as values in `bodies`,
queries watched on the driver in `metrics.py`.
"""

from gantrymq.spark import versions  # noqa: F401  # first: it says which Spark is too old
from gantrymq.spark.datasource import RocketMQDataSource, register
from gantrymq.spark.session import java_home, session_builder

__all__ = ["RocketMQDataSource", "java_home", "register", "session_builder"]
