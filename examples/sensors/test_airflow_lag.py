"""Tests that the sensor of the DAG waits while the group has lag."""

import airflow_lag
from airflow_lag import ConsumerLagSensor
from lagging_group import consume, send

from gantrymq.testing.embedded import EmbeddedCluster


def test_the_sensor(gantry_cluster: EmbeddedCluster) -> None:
    send(gantry_cluster.name_server, 3)
    consume(gantry_cluster.name_server, 1)
    options = {"name_servers": gantry_cluster.name_server, "group": "warehouse", "topic": "orders"}
    assert not ConsumerLagSensor(task_id="none", **options).poke({})
    assert ConsumerLagSensor(task_id="some", max_lag=2, **options).poke({})
    consume(gantry_cluster.name_server, 2)
    sensor = ConsumerLagSensor(task_id="executed", poke_interval=0.1, timeout=30, **options)
    sensor.execute({})


def test_the_dag() -> None:
    sensor = airflow_lag.dag.get_task("warehouse_is_current")
    assert sensor.reschedule
    assert sensor.downstream_task_ids == {"report"}
