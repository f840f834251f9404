"""Emits OpenLineage events for streaming queries (extra `openlineage`).

    lineage = QueryLineage("127.0.0.1:9876", outputs={"large": "large-orders"})
    with watch_queries(spark, lineage=lineage):
        query.awaitTermination()

A run of a query is a run of OpenLineage, with Spark's id. The job has the name of the query. Topics are datasets with
their name, in the namespace `rocketmq://HOST:PORT` of the first NameServer.

| event of Spark | event of OpenLineage |
|---|---|
| start of a query | START |
| progress | RUNNING, with the topics that the query reads |
| end | COMPLETE, or FAIL with the error |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyspark

from gantrymq.extras import missing
from gantrymq.remoting.name_server_discovery import split_addresses
from gantrymq.spark.progress import topics_of

try:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run
except ImportError as e:
    raise missing("openlineage", "gantrymq.spark.lineage", e) from e

log = logging.getLogger(__name__)

#: The URI of the software that produces the events, which OpenLineage requires.
PRODUCER = "urn:gantrymq:spark"


@dataclass(slots=True)
class _QueryRun:
    job: str
    #: The topics that the run has read, in a dictionary to keep their order.
    inputs: dict[str, None] = field(default_factory=dict)


class QueryLineage:
    """The lineage of the streaming queries of a session. `watch_queries` calls it from one thread."""

    def __init__(
        self,
        name_servers: str,
        *,
        outputs: Mapping[str, str] | None = None,
        job_namespace: str = "default",
        client: OpenLineageClient | None = None,
    ) -> None:
        """Creates the lineage of queries on one cluster.

        Args:
            name_servers: The NameServers of the cluster, `HOST:PORT` with `;` between them.
            outputs: {name of a query: topic that it writes}. Spark does not report the topic of a sink.
            job_namespace: The namespace of the jobs. Default: `default`.
            client: The client that sends the events. Default: one with the configuration of the environment
                (`OPENLINEAGE_URL`, `OPENLINEAGE_CONFIG` or `openlineage.yml`).
        """
        self._namespace = f"rocketmq://{split_addresses(name_servers)[0]}"
        self._outputs = dict(outputs or {})
        self._job_namespace = job_namespace
        self._client = client or OpenLineageClient()
        self._runs: dict[str, _QueryRun] = {}

    def started(self, query_id: str, run_id: str, name: str | None) -> None:
        self._runs[run_id] = _QueryRun(name or query_id)
        self._emit(RunState.START, run_id)

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Records a progress, which is the decoded JSON of Spark's StreamingQueryProgress."""
        run = self._runs.setdefault(progress["runId"], _QueryRun(progress.get("name") or progress["id"]))
        for source in progress.get("sources") or ():
            run.inputs |= dict.fromkeys(topics_of(source))
        self._emit(RunState.RUNNING, progress["runId"])

    def ended(self, query_id: str, run_id: str, error: str | None) -> None:
        """Records the end of a run. `error` is the text of the error that ended it; None without one."""
        self._runs.setdefault(run_id, _QueryRun(query_id))
        self._emit(RunState.COMPLETE if error is None else RunState.FAIL, run_id, error)
        del self._runs[run_id]

    def _emit(self, state: RunState, run_id: str, error: str | None = None) -> None:
        run = self._runs[run_id]
        facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version=pyspark.__version__, name="spark"
            )
        }
        if error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=error, programmingLanguage="python")
        kind = job_type_job.JobTypeJobFacet(processingType="STREAMING", integration="SPARK", jobType="QUERY")
        output = self._outputs.get(run.job)
        event = RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            producer=PRODUCER,
            eventType=state,
            run=Run(run_id, facets=facets),
            job=Job(self._job_namespace, run.job, facets={"jobType": kind}),
            inputs=[InputDataset(self._namespace, topic) for topic in run.inputs],
            outputs=[] if output is None else [OutputDataset(self._namespace, output)],
        )
        try:
            self._client.emit(event)
        except Exception as e:
            # Transports raise errors of their own libraries. A failed event must not end the other exports.
            log.warning("can't emit the lineage of query %s: %s", run.job, e)
