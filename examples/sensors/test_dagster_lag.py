"""Tests that the sensor starts the job only when the lag is large, and that the job runs."""

import dagster as dg
import pytest
from dagster_lag import MIN_LAG, definitions, load, warehouse_lag
from lagging_group import consume, send

from gantrymq.testing.embedded import EmbeddedCluster


def test_the_sensor(gantry_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", gantry_cluster.name_server)
    send(gantry_cluster.name_server, 3)
    consume(gantry_cluster.name_server, 1)
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, definitions=definitions)
        assert warehouse_lag(context) == dg.SkipReason("only 2 messages wait")
        send(gantry_cluster.name_server, MIN_LAG - 2)
        request = warehouse_lag(context)
        assert isinstance(request, dg.RunRequest)
        assert request.tags["lag"] == str(MIN_LAG)
        run = instance.create_run_for_job(load, status=dg.DagsterRunStatus.STARTED)
        assert warehouse_lag(context) == dg.SkipReason("the job is still running")
        instance.delete_run(run.run_id)
        assert load.execute_in_process(instance=instance, tags=request.tags).success
        # The run has ended, so the sensor requests the next one.
        assert isinstance(warehouse_lag(context), dg.RunRequest)
