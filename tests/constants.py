"""The constants that tests change, because their real values cost a test too much time or memory."""

from __future__ import annotations

import importlib

import pytest

_CONSTANTS = (
    "gantrymq.arrow.batch_bodies._ROWS_AT_ONCE",
    "gantrymq.arrow.connection_pool.CANCEL_TIMEOUT_S",
    "gantrymq.arrow.partitions.SAMPLED_ROWS",
    "gantrymq.arrow.pull.BATCH_ROWS",
    "gantrymq.arrow.pull.LEAST_PULL_BYTES",
    "gantrymq.arrow.pull.PULL_BYTES",
    "gantrymq.arrow.record_batches._RECORDS",
    "gantrymq.arrow.store.rows.CHUNK_BYTES",
    "gantrymq.broker.admin.client_relay.CLIENT_TIMEOUT_MS",
    "gantrymq.broker.admin.messages._MAX_ANSWER_BYTES",
    "gantrymq.broker.admin.messages._MAX_SEARCHES",
    "gantrymq.broker.append.new_topics.SLICE_S",
    "gantrymq.broker.append.preallocation_waits.WAIT_S",
    "gantrymq.broker.delay.timer.MAX_RECALLS_OF_SLOT",
    "gantrymq.broker.lite.dispatcher._ABSENT_S",
    "gantrymq.broker.lite.service._EXPIRED_AT_ONCE",
    "gantrymq.broker.pull.processor.WAITING_PULLS_OF_ONE",
    "gantrymq.broker.send.batches.AFTER_MARK",
    "gantrymq.broker.send.batches.TRANSACTION_PREPARED",
    "gantrymq.broker.slave.metadata_sync._PERIOD_S",
    "gantrymq.broker.tables.subscription_groups.MAX_MADE_BY_CLIENTS",
    "gantrymq.broker.tables.topics.MAX_MADE_BY_CLIENTS",
    "gantrymq.broker.tables.transaction_counts.MAX_TOPICS",
    "gantrymq.cli.produce_input.MAX_LENGTH",
    "gantrymq.client.client_instance.HEARTBEAT_INTERVAL_S",
    "gantrymq.client.client_instance.RECONNECT_S",
    "gantrymq.client.consuming.assigned_queues.COMMIT_INTERVAL_S",
    "gantrymq.client.consuming.concurrently.RETRY_LOCALLY_S",
    "gantrymq.client.consuming.consumer_relay.SAMPLE_INTERVAL_S",
    "gantrymq.client.consuming.handler_pool.CANCEL_TIMEOUT_S",
    "gantrymq.client.consuming.introduction.START_S",
    "gantrymq.client.consuming.large_bodies.BUDGET_BYTES",
    "gantrymq.client.consuming.offset_store.REPEAT_S",
    "gantrymq.client.consuming.queue_puller.RETRY_DELAY_S",
    "gantrymq.client.consuming.rebalancer.RETRY_INTERVAL_S",
    "gantrymq.client.doctor.groups_seen.MEMBERS_TIMEOUT_S",
    "gantrymq.client.doctor.replication_checks.LATE_MS",
    "gantrymq.client.popping.lite_subscription_manager.REPEAT_S",
    "gantrymq.client.popping.lite_subscription_manager.RETRY_S",
    "gantrymq.client.popping.popped_queues.RETRY_AFTER_S",
    "gantrymq.client.popping.popped_queues.RETRY_DELAY_S",
    "gantrymq.client.producing.latency_fault.NOT_AVAILABLE_DURATION_MS",
    "gantrymq.client.producing.transaction_producer.MAX_CHECK_BYTES",
    "gantrymq.client.topology.TOPICS_INTERVAL_S",
    "gantrymq.client.trace.CLOSE_TIMEOUT_S",
    "gantrymq.client.trace.FLUSH_INTERVAL_S",
    "gantrymq.client.trace.MAX_TEXT",
    "gantrymq.console.app.PAGES",
    "gantrymq.console.guard.BODY_WITHIN_S",
    "gantrymq.console.queries.dead_letter_messages.MAX_READ",
    "gantrymq.console.queries.queue_reader.MAX_READ_BYTES",
    "gantrymq.controller.elections.WORD_S",
    "gantrymq.controller.etcd_store.LEASE_S",
    "gantrymq.controller.etcd_store.PAGE",
    "gantrymq.controller.replicas.MAX_BROKERS",
    "gantrymq.controller.replicas.MAX_BROKER_SETS",
    "gantrymq.demo.state.LOCK_TIMEOUT_S",
    "gantrymq.filter.filter_cache.FILTER_CHARACTERS",
    "gantrymq.logs.LINES",
    "gantrymq.metrics.REQUEST_TIMEOUT_S",
    "gantrymq.metrics_export.export.LAST_EXPORT_S",
    "gantrymq.mirror.mirror.STATE_INTERVAL_S",
    "gantrymq.mirror.mirror.STATE_REFRESH_S",
    "gantrymq.namesrv.notifications.MAX_UNDER_WAY",
    "gantrymq.namesrv.route_table.MAX_TOPICS",
    "gantrymq.namesrv.route_table._STEP_TOPICS",
    "gantrymq.namesrv.server.KV_LOG_DELAY_S",
    "gantrymq.namesrv.server.KV_LOG_INTERVAL_S",
    "gantrymq.protocol.fastjson._STEP_BYTES",
    "gantrymq.proxy.clients.PROXY_SETTINGS_BYTES",
    "gantrymq.proxy.consumer.in_flight_messages.PROXY_IN_FLIGHT_MESSAGES",
    "gantrymq.remoting.incomplete_frames.PACE_S",
    "gantrymq.remoting.long_requests.SLICE_S",
    "gantrymq.remoting.server.CLOSED_PER_TURN",
    "gantrymq.remoting.server.RESPONSE_TASKS",
    "gantrymq.remoting.server_tls.WATCH_INTERVAL_S",
    "gantrymq.remoting.time_slices.WAITING_READS_BYTES",
    "gantrymq.remoting.tls_detection.HANDSHAKE_TIMEOUT_S",
    "gantrymq.spark.query_metrics.MOST_ENDED",
    "gantrymq.store.cleaner._SLICE_S",
    "gantrymq.store.index_entries._RECORDS",
    "gantrymq.store.index_file._RESERVE",
    "gantrymq.store.key_lookup._STEP_S",
    "gantrymq.store.message_index._STEPS",
    "gantrymq.store.preallocation._RETRY_S",
    "gantrymq.store.queue_mappings.MOST_MAPPINGS",
    "gantrymq.store.topic_retention._COUNTED_AT_ONCE",
    "gantrymq.store.topic_retention._SLICE_S",
    "gantrymq.store.trash._STEP_S",
    "gantrymq.tier.reader._INDEX_PIECE_BYTES",
    "gantrymq.tier.tier._SEARCH_S",
)
_MODULES = {".".join(path.split(".")[-2:]): path.rpartition(".")[0] for path in _CONSTANTS}


def change_constant(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    """Changes a constant for one test.

    Args:
        monkeypatch: Restores the constant after the test.
        name: Last part of the module and the constant, such as "queue_puller.RETRY_DELAY_S".
        value: Value for the test.
    """
    module = importlib.import_module(_MODULES[name])
    monkeypatch.setattr(module, name.rpartition(".")[2], value)
