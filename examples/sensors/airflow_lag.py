"""A sensor of Airflow that waits until a consumer group has little lag, and a DAG that uses it."""

import asyncio
from typing import Any

from airflow.sdk import DAG, BaseSensorOperator, task

from gantrymq import AdminClient


class ConsumerLagSensor(BaseSensorOperator):
    """Succeeds when the lag of a consumer group is at most `max_lag` messages."""

    template_fields = ("name_servers", "group", "topic")

    def __init__(self, *, name_servers: str, group: str, topic: str, max_lag: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.name_servers = name_servers
        self.group = group
        self.topic = topic
        self.max_lag = max_lag

    def poke(self, context: Any) -> bool:
        lag = asyncio.run(self._lag())
        self.log.info("group %s has a lag of %d messages in topic %s", self.group, lag, self.topic)
        return lag <= self.max_lag

    async def _lag(self) -> int:
        async with AdminClient(self.name_servers) as admin:
            return (await admin.consume_stats(self.group, self.topic)).total_diff


with DAG("daily_report", schedule="@daily") as dag:

    @task
    def report() -> None:
        print("the warehouse has all orders")

    (
        ConsumerLagSensor(
            task_id="warehouse_is_current",
            name_servers="127.0.0.1:9876",
            group="warehouse",
            topic="orders",
            mode="reschedule",  # The task needs no worker between two checks.
            poke_interval=60,
        )
        >> report()
    )
