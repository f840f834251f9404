"""Makes `rocketmq` known to every Spark session, without `register`.

Spark imports each module `pyspark_*` and registers its `DefaultSource` (SPARK-45917).
"""

from contextlib import suppress

# If this import raised an error, Spark would register no Python data source of any package.
with suppress(ImportError):
    from gantrymq.spark.datasource import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
