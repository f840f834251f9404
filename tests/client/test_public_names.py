"""`from gantrymq import *` imports the names of the reference, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gantrymq
from gantrymq import LocalTransactionState, Message, MessageExt, errors

API = Path(__file__).parent.parent.parent / "docs" / "reference" / "api"
#: Pages of names that the package itself exports. The other pages are about modules of their own.
PAGES = ("producers.md", "consumers.md", "messages.md", "administration.md", "sync.md")
ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__}


#: Attributes of the objects, beside those of their base class `object`. A change of this list is a change of the API.
_CLIENT = {"close", "start"}
_CONSUMER = _CLIENT | {"group", "subscribe", "unsubscribe"}
_PULLING = _CONSUMER | {"assignment", "health", "lag", "notify_in_threads", "wait_assigned"}
_PRODUCER = _CLIENT | {
    *("begin_send", "send_blocking", "client", "enqueue", "flush", "group", "queues", "recall", "request"),
    *("send", "send_alone", "send_batch", "send_oneway", "sender"),
}
_LITE_PULL = {
    *("assign", "commit", "committed", "end_offset", "offset_for_time", "pause", "paused", "poll", "position"),
    *("queues", "resume", "seek", "seek_to_begin", "seek_to_end", "seek_to_time"),
}
_LITE = _CLIENT | {"lite_topic_set", "subscribe_lite", "unsubscribe_lite"}
_SYNC_PRODUCER = _CLIENT | {"enqueue", "flush", "queues", "recall", "request", "send", "send_batch", "send_oneway"}
_SYNC_PULLING = _CLIENT | {"assignment", "health", "lag", "subscribe", "unsubscribe", "wait_assigned"}
_MESSAGE = {
    "tags",
    "topic",
    "body",
    "deduplicate_id",
    "flag",
    "keys",
    "lite_topic",
    "priority",
    "properties",
    "sharding_key",
}
ATTRIBUTES: dict[str, set[str]] = {
    "Producer": _PRODUCER,
    "TransactionProducer": _PRODUCER | {"send_in_transaction"},
    "PushConsumer": _PULLING | {"handler"},
    "LitePullConsumer": _PULLING | _LITE_PULL,
    "SimpleConsumer": _CONSUMER | {"ack", "change_invisible_time", "receive"},
    "LiteSimpleConsumer": _LITE | {"ack", "change_invisible_time", "group", "receive"},
    "LitePushConsumer": _LITE | {"group", "handler"},
    "KeyValue": _CLIENT | {"delete", "entries", "get", "put", "watch"},
    "Middleware": {"around_consume", "around_receive", "around_send"},
    "SendContext": {"address", "client_id", "group", "messages", "msg_id", "oneway"},
    "ConsumeContext": {"client_id", "group", "message"},
    "ReceiveContext": {"client_id", "group", "topics"},
    "SyncProducer": _SYNC_PRODUCER,
    "SyncTransactionProducer": _SYNC_PRODUCER | {"send_in_transaction"},
    "SyncPushConsumer": _SYNC_PULLING | {"handler"},
    "SyncLitePullConsumer": _SYNC_PULLING | _LITE_PULL,
    "SyncSimpleConsumer": _CLIENT | {"ack", "change_invisible_time", "receive", "subscribe", "unsubscribe"},
    "SyncLiteSimpleConsumer": _LITE | {"ack", "change_invisible_time", "receive"},
    "SyncLitePushConsumer": _LITE | {"handler"},
    "AdminClient": {
        # Clusters and brokers.
        *("add_broker_to_container", "all_brokers_of", "broker_address", "broker_config", "broker_epochs"),
        *("broker_stats", "brokers_of", "close", "remove_broker_from_container"),
        *("clean_broker_metadata", "clean_expired_consume_queues", "clean_unused_topics", "cluster_info"),
        *("delete_expired_commit_log", "ha_status", "masters_of", "masters_of_topic", "name_servers"),
        *("reset_master_flush_offset", "runtime_info", "update_broker_config"),
        # NameServers and controllers.
        *("add_write_perm", "controller_configs", "controller_metadata", "delete_order_conf", "elect_master"),
        *("failed_name_server_jobs", "kv_delete", "kv_get", "kv_list", "kv_put", "merge_order_conf"),
        *("name_server_configs", "order_conf", "put_order_conf", "sync_state_sets", "update_controller_configs"),
        *("update_name_server_configs", "wipe_write_perm"),
        # Topics.
        *("clusters_of_topic", "consume_queue", "create_topic", "create_topics", "delete_topic", "ensure_topic"),
        *("groups_of_topic", "holders", "system_topics", "topic_config", "topic_configs", "topic_list", "topic_route"),
        *("topic_stats", "topics_of_cluster", "update_topic_perm"),
        # Groups and offsets.
        *("broker_consume_stats", "clone_offsets", "committed_offset", "consume_stats", "consume_time_spans"),
        *("consumer_connection", "consumer_running_info", "create_group", "create_groups", "delete_group"),
        *("group_config", "group_configs", "groups", "planned_offsets", "producer_connection", "producers"),
        *("reset_offset", "reset_queue_offset", "set_consume_mode", "skip_accumulated"),
        # Lite topics.
        *("broker_lite_info", "lite_client_info", "lite_group_info", "lite_topic_info", "parent_topic_info"),
        "trigger_lite_dispatch",
        # Messages.
        *("consume_directly", "end_given_up", "given_up_transactions", "message_at", "message_by_id"),
        *("message_by_offset_id", "message_trace", "message_track", "messages_by_key", "messages_by_unique_key"),
        *("messages_of_queue", "resend_dead_letter_messages", "resend_selected_messages"),
        # Access control.
        *("acl", "acls", "create_acl", "create_user", "delete_acl", "delete_user", "update_acl", "update_user"),
        *("user", "users"),
    },
    "MessageExt": _MESSAGE
    | {
        *("born_host", "born_host_bytes", "born_timestamp", "broker_name", "commit_log_offset", "compression_flags"),
        *("damaged", "decompress_if_small", "is_damaged", "is_packed", "is_undecodable", "message_queue", "msg_id"),
        *("of_parts", "offset_msg_id", "pack", "place", "prepared_transaction_offset", "queue_id", "queue_offset"),
        *("reconsume_times", "store_host", "store_size", "store_timestamp", "stored_body", "sys_flag", "unpack"),
    },
    "Message": _MESSAGE,
}


class Listener:
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def public_names(one: object) -> set[str]:
    return {name for name in dir(one) if not name.startswith("_")}


async def test_public_attributes() -> None:
    """Attributes that `help` and editors show are added on purpose."""
    address = "127.0.0.1:9876"
    objects = [
        gantrymq.Producer(address, "group"),
        gantrymq.TransactionProducer(address, "group", Listener()),
        gantrymq.PushConsumer(address, "group"),
        gantrymq.LitePullConsumer(address, "group"),
        gantrymq.SimpleConsumer(address, "group"),
        gantrymq.LiteSimpleConsumer(address, "group", "topic"),
        gantrymq.LitePushConsumer(address, "group", "topic"),
        gantrymq.KeyValue(address, "topic"),
        gantrymq.Middleware(),
        gantrymq.SendContext(group="", client_id="", messages=()),
        gantrymq.ConsumeContext(group="", client_id="", message=MessageExt.__new__(MessageExt)),
        gantrymq.ReceiveContext(group="", client_id="", topics=()),
        Message("topic", b""),
        MessageExt.__new__(MessageExt),
        gantrymq.AdminClient(address),
        gantrymq.SyncProducer(gantrymq.Producer(address, "group")),
        gantrymq.SyncTransactionProducer(gantrymq.TransactionProducer(address, "group", Listener())),
        gantrymq.SyncPushConsumer(gantrymq.PushConsumer(address, "group")),
        gantrymq.SyncLitePullConsumer(gantrymq.LitePullConsumer(address, "group")),
        gantrymq.SyncSimpleConsumer(gantrymq.SimpleConsumer(address, "group")),
        gantrymq.SyncLiteSimpleConsumer(gantrymq.LiteSimpleConsumer(address, "group", "topic")),
        gantrymq.SyncLitePushConsumer(gantrymq.LitePushConsumer(address, "group", "topic")),
    ]
    assert {type(one).__name__: public_names(one) for one in objects} == ATTRIBUTES


def test_docs_import_no_internal_modules() -> None:
    root = API.parent.parent.parent
    public = r"(arrow|client\.otel|codecs|errors|integrations|logs|metrics|spark|testing)\b"
    pages = [*(root / "docs").rglob("*.md"), *root.glob("*.md"), *(root / "examples").rglob("*.py")]
    wrong = [
        f"{page.relative_to(root)}: {module}"
        for page in pages
        for module in re.findall(r"^\s*(?:from|import) gantrymq\.(\S+)", page.read_text(), re.MULTILINE)
        if not re.match(public, module)
    ]
    assert wrong == []


def documented() -> set[str]:
    text = "".join((API / page).read_text() for page in PAGES)
    entries = re.findall(r"^::: gantrymq\.\S*\.(\w+)$", text, re.MULTILINE)
    constants = re.findall(r"`([A-Z]+_[A-Z_]+)`", text)
    return {*entries, *constants, "run"}


def test_star_import() -> None:
    names: dict[str, Any] = {}
    exec("from gantrymq import *", names)
    names.pop("__builtins__")
    assert names.keys() == documented() | ERRORS
    assert all(names[name] is getattr(errors, name) for name in ERRORS)


def test_unknown_names() -> None:
    assert "Prducer" not in dir(gantrymq)
    with pytest.raises(AttributeError, match="module 'gantrymq' has no attribute 'Prducer'"):
        getattr(gantrymq, "Prducer")  # noqa: B009


def test_the_import_of_an_error_imports_no_client() -> None:
    code = "import sys; from gantrymq import BrokerError; print(*(m for m in sys.modules if m.startswith('gantrymq')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gantrymq", "gantrymq.errors"]
