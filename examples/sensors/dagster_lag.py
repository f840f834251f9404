"""A sensor of Dagster that starts a job when a consumer group has much lag: `dagster dev -f dagster_lag.py`."""

import asyncio
import os

import dagster as dg

from gantrymq import AdminClient

MIN_LAG = 1000
ACTIVE = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]


async def lag(name_servers: str, group: str, topic: str) -> int:
    async with AdminClient(name_servers) as admin:
        return (await admin.consume_stats(group, topic)).total_diff


@dg.op
def load_orders(context: dg.OpExecutionContext) -> None:
    context.log.info("here a SimpleConsumer or Spark loads the orders")


@dg.job
def load() -> None:
    load_orders()


@dg.sensor(job=load, minimum_interval_seconds=60)
def warehouse_lag(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    if context.instance.get_runs(dg.RunsFilter(job_name=load.name, statuses=ACTIVE), limit=1):
        return dg.SkipReason("the job is still running")
    waiting = asyncio.run(lag(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"), "warehouse", "orders"))
    if waiting < MIN_LAG:
        return dg.SkipReason(f"only {waiting} messages wait")
    return dg.RunRequest(tags={"lag": str(waiting)})


definitions = dg.Definitions(jobs=[load], sensors=[warehouse_lag])
