"""Namespaces of topics and groups: NAMESPACE%NAME (remoting/protocol/NamespaceUtil).

%RETRY% and %DLQ% stay in front: %RETRY%NAMESPACE%GROUP. System topics and groups have no namespace.
"""

from __future__ import annotations

from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic

SEPARATOR = "%"
#: Groups of RocketMQ itself (`MixAll.CID_RMQ_SYS_PREFIX`).
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


def wrap_namespace(namespace: str, name: str) -> str:
    """`name` of a topic or group as brokers know it; an empty namespace, or one that is there already, adds nothing."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, bare = _split(name)
    if bare.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{bare}"


def without_namespace(name: str, namespace: str) -> str:
    """`name` as users of `namespace` know it; other namespaces' names stay as they are."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, bare = _split(name)
    return prefix + bare.removeprefix(namespace + SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_system(name: str) -> bool:
    return is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX)
