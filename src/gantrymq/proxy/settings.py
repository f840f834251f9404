"""Settings that a client must use: its own settings, completed by the proxy (`GrpcClientSettingsManager`).

A producer receives a retry policy and the largest body size. A consumer receives the retry policy of its group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.lite_topic import lite_client_quota
from gantrymq.proxy.clients import LITE_CONSUMERS
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.retry_policy import EXPONENTIAL, customized_ms, exponential
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2.definition_pb2 import (
    Code,
    CustomizedBackoff,
    ExponentialBackoff,
    Metric,
    RetryPolicy,
    Settings,
)

#: Limits of `client_properties` in definition.proto: number, characters of a value, bytes of all names and values.
MAX_PROPERTIES = 32
MAX_VALUE_LENGTH = 256
MAX_PROPERTIES_SIZE = 4096
_MAX_INT32 = (1 << 31) - 1
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")


def settings_for(settings: Settings, group: SubscriptionGroupConfig | None, config: ProxyConfig) -> Settings:
    """Returns a client's completed settings. `group` is a consumer's group; None if no broker has the group."""
    merged = Settings()
    merged.CopyFrom(settings)
    if merged.HasField("publishing"):
        _complete_producer(merged, config)
    elif merged.HasField("subscription"):
        _complete_consumer(merged, group, config)
    merged.metric.CopyFrom(Metric(on=False))
    return merged


def _complete_producer(settings: Settings, config: ProxyConfig) -> None:
    """Adds the retry policy and the limits of the proxy's configuration."""
    settings.backoff_policy.CopyFrom(
        RetryPolicy(
            max_attempts=config.grpc_client_producer_max_attempts,
            exponential_backoff=ExponentialBackoff(
                initial=to_duration(config.grpc_client_producer_backoff_initial_millis),
                max=to_duration(config.grpc_client_producer_backoff_max_millis),
                multiplier=config.grpc_client_producer_backoff_multiplier,
            ),
        )
    )
    settings.publishing.validate_message_type = config.enable_topic_message_type_check
    settings.publishing.max_body_size = config.max_message_size


def _complete_consumer(settings: Settings, group: SubscriptionGroupConfig | None, config: ProxyConfig) -> None:
    """Adds the group's settings, which override the client's settings. Without a group, nothing changes."""
    added = Settings()
    subscription = added.subscription
    subscription.receive_batch_size = config.grpc_client_consumer_long_polling_batch_size
    subscription.long_polling_timeout.CopyFrom(to_duration(config.grpc_client_consumer_max_long_polling_timeout_millis))
    policy_of = group or SubscriptionGroupConfig("")
    subscription.fifo = policy_of.consume_message_orderly
    if settings.client_type in LITE_CONSUMERS:
        quota = lite_client_quota(policy_of.attributes)
        subscription.lite_subscription_quota = -1 if quota is None else min(quota, _MAX_INT32)
        subscription.max_lite_topic_size = config.max_lite_topic_size
    added.backoff_policy.CopyFrom(backoff_policy(policy_of))
    if group is None:
        added.MergeFrom(settings)
        settings.CopyFrom(added)
    else:
        settings.ClearField("backoff_policy")
        settings.MergeFrom(added)


def backoff_policy(group: SubscriptionGroupConfig) -> RetryPolicy:
    """Returns how many delivery attempts a group has, and their delays."""
    policy = group.group_retry_policy
    attempts = group.retry_max_times + 1
    if policy.type == EXPONENTIAL:
        figures = exponential(policy)
        return RetryPolicy(
            max_attempts=attempts,
            exponential_backoff=ExponentialBackoff(
                initial=to_duration(figures.initial_ms),
                max=to_duration(figures.max_ms),
                multiplier=figures.multiplier,
            ),
        )
    delays = [to_duration(delay) for delay in customized_ms(policy)]
    return RetryPolicy(max_attempts=attempts, customized_backoff=CustomizedBackoff(next=delays))


def check_properties(properties: Mapping[str, str]) -> None:
    """Raises ProxyError if the application's properties of a client are invalid or too large."""
    size = 0
    for name, value in properties.items():
        if not _NAME.fullmatch(name):
            raise ProxyError(
                Code.INVALID_CLIENT_PROPERTIES, f"client property {name[:80]!r}: names match {_NAME.pattern}"
            )
        if len(value) > MAX_VALUE_LENGTH:
            raise ProxyError(
                Code.INVALID_CLIENT_PROPERTIES, f"client property {name} has more than {MAX_VALUE_LENGTH} characters"
            )
        size += len(name) + len(value.encode())
    if len(properties) > MAX_PROPERTIES or size > MAX_PROPERTIES_SIZE:
        raise ProxyError(
            Code.INVALID_CLIENT_PROPERTIES,
            f"{len(properties)} client properties of {size} bytes: "
            f"at most {MAX_PROPERTIES} of {MAX_PROPERTIES_SIZE} are taken",
        )
