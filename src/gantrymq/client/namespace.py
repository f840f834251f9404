"""Namespaces of topics and groups: NAMESPACE%NAME (`NamespaceUtil`).

The prefixes %RETRY% and %DLQ% stay first: %RETRY%NAMESPACE%GROUP. System topics and groups have no namespace.
"""

from __future__ import annotations

from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic

SEPARATOR = "%"


def wrap_namespace(namespace: str, name: str) -> str:
    """Adds the namespace to a topic or group name, unless the namespace is empty or the name already has it."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, bare = _split(name)
    if bare.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{bare}"


def without_namespace(name: str, namespace: str) -> str:
    """Removes `namespace` from a name. Names with other namespaces stay unchanged."""
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
