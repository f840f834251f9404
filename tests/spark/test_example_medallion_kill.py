"""Kills examples/pipelines/medallion.py while it writes its four tables, and checks that each flight is there once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from example_support import EXAMPLES, send_bodies
from kill_support import batches_begun, kill_in_a_batch
from lake_support import lake_driver, needs_lake, run_to_the_end, run_with_lake, submit
from test_example_medallion import body, check_gold, flights_with_keys, needs_flights

from gantrymq.testing.embedded import EmbeddedCluster

#: A micro-batch takes at least this long, in seconds: it writes bronze, silver, rejected and gold in sequence.
LONGEST_S = 8.0
#: test_spark_delta.py tests more kills for the lake and Spark. This test covers the example itself.
KILLS = 3

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600), needs_lake("delta"), needs_flights]


def test_each_flight_once(cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path) -> None:
    flights, topic, lake = flights_with_keys(), new_topic(2), tmp_path / "lake"
    # Some flights are sent twice, and some bodies are not flights.
    bodies = [*map(body, flights.itertuples()), *map(body, flights[:50].itertuples()), "no flight", "[]"]
    random.Random(5).shuffle(bodies)
    parts = [bodies[n :: KILLS + 1] for n in range(KILLS + 1)]
    program = [*submit("delta", tmp_path), str(EXAMPLES / "medallion.py"), "--name-server", cluster.name_server]
    program += ["--topic", topic, "--lake", str(lake)]
    log, checkpoint = tmp_path / "driver.log", lake / ".checkpoint"
    for part in parts[:-1]:
        send_bodies(cluster, topic, part)
        before = batches_begun(checkpoint)
        with lake_driver([*program, "--interval", "0 seconds"], tmp_path) as process:
            kill_in_a_batch(process, log, checkpoint, before, LONGEST_S)
    run_to_the_end(program, tmp_path)
    # In the last part, silver gets the new field `dest`.
    (tmp_path / "parts.json").write_text(json.dumps(parts[-1:]))
    given = [cluster.name_server, topic, str(lake), str(tmp_path / "parts.json")]
    driver = Path(__file__).parent / "medallion_driver.py"
    found = json.loads(run_with_lake("delta", driver, given, tmp_path).splitlines()[-1])

    assert found["bronze"] == len(bodies)
    assert len(found["silver"]) == len(flights)
    assert sorted(row[0] for row in found["rejected"]) == ["[]", "no flight"]
    check_gold(found["gold"][0], flights)
    check_gold(found["gold after the refill"], flights)
