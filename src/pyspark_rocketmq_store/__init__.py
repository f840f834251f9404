"""Makes `rocketmq-store` known to every Spark session, as `pyspark_rocketmq` does for `rocketmq`."""

from contextlib import suppress

# If this import raised an error, Spark would register no Python data source of any package.
with suppress(ImportError):
    from gantrymq.spark.store.datasource import RocketMQStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
