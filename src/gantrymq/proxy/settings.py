"""What a client is told of how to behave: its own settings, completed (`GrpcClientSettingsManager`).

A producer learns how often to try again and how large a body may be, a consumer its group's policy. Nothing is kept
here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
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

#: Limits of `client_properties`, as definition.proto has them; the last in bytes.
MAX_PROPERTIES = 32
MAX_VALUE_LENGTH = 256
MAX_PROPERTIES_SIZE = 4096
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")


def settings_for(settings: Settings, group: SubscriptionGroupConfig | None, config: ProxyConfig) -> Settings:
    """What a client has told, with what the proxy adds; `group` is a consumer's, None when no broker knows it."""
    merged = Settings()
    merged.CopyFrom(settings)
    if merged.HasField("publishing"):
        _complete_producer(merged, config)
    elif merged.HasField("subscription"):
        _complete_consumer(merged, group, config)
    merged.metric.CopyFrom(Metric(on=False))
    return merged


def _complete_producer(settings: Settings, config: ProxyConfig) -> None:
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
    """Of an unknown group the client's own word counts, and the defaults of groups where it has said nothing."""
    added = Settings()
    subscription = added.subscription
    subscription.receive_batch_size = config.grpc_client_consumer_long_polling_batch_size
    subscription.long_polling_timeout.CopyFrom(to_duration(config.grpc_client_consumer_max_long_polling_timeout_millis))
    policy_of = group or SubscriptionGroupConfig("")
    subscription.fifo = policy_of.consume_message_orderly
    added.backoff_policy.CopyFrom(backoff_policy(policy_of))
    if group is None:
        added.MergeFrom(settings)
        settings.CopyFrom(added)
    else:
        settings.ClearField("backoff_policy")
        settings.MergeFrom(added)


def backoff_policy(group: SubscriptionGroupConfig) -> RetryPolicy:
    """How often and when a group's messages come again."""
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
    """What an application says of its client. Raises ProxyError."""
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
