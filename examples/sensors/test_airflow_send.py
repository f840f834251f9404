"""Tests that the operator of the DAG sends its message, with rendered templates."""

import json

import airflow_send
from airflow_send import SendMessageOperator
from lagging_group import received

from gantrymq.testing.embedded import EmbeddedCluster


def test_the_operator(gantry_cluster: EmbeddedCluster) -> None:
    operator = SendMessageOperator(
        task_id="announce",
        name_servers=gantry_cluster.name_server,
        topic="loads",
        body='{"day": "{{ ds }}"}',
        tags="orders",
    )
    operator.render_template_fields({"ds": "2026-01-31", "run_id": "scheduled__2026-01-31"})
    message_id = operator.execute({})
    [message] = received(gantry_cluster.name_server, "loads")
    assert json.loads(message.body) == {"day": "2026-01-31"}
    assert (message.msg_id, message.tags) == (message_id, "orders")
    assert message.keys == ["scheduled__2026-01-31"]


def test_the_dag() -> None:
    operator = airflow_send.dag.get_task("announce")
    assert operator.upstream_task_ids == {"load"}
    assert operator.retries == 3
