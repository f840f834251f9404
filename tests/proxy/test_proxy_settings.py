"""Settings that the proxy sends to clients."""

from __future__ import annotations

import pytest

from gantrymq.protocol.bodies.subscription_group import GroupRetryPolicy, SubscriptionGroupConfig
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.retry_policy import retry_delay_ms
from gantrymq.proxy.settings import check_properties, settings_for
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2 import definition_pb2 as pb

EXPONENTIAL = GroupRetryPolicy(
    type="EXPONENTIAL", exponential_retry_policy={"initial": 1000, "max": 60_000, "multiplier": 3}
)


def consumer(**subscription: object) -> pb.Settings:
    return pb.Settings(
        client_type=pb.PUSH_CONSUMER,
        subscription=pb.Subscription(group=pb.Resource(name="g"), **subscription),  # type: ignore[arg-type]
    )


def test_a_producer() -> None:
    sent = pb.Settings(
        client_type=pb.PRODUCER,
        publishing=pb.Publishing(topics=[pb.Resource(name="orders")], max_body_size=1),
        request_timeout=to_duration(3000),
        backoff_policy=pb.RetryPolicy(max_attempts=99),
    )
    merged = settings_for(sent, None, ProxyConfig(max_message_size=1000, enable_topic_message_type_check=False))
    assert merged.publishing.max_body_size == 1000
    assert not merged.publishing.validate_message_type
    assert [topic.name for topic in merged.publishing.topics] == ["orders"]
    assert merged.backoff_policy == pb.RetryPolicy(
        max_attempts=3,
        exponential_backoff=pb.ExponentialBackoff(initial=to_duration(10), max=to_duration(1000), multiplier=2),
    )
    assert merged.request_timeout == to_duration(3000)
    assert not merged.metric.on
    assert sent.backoff_policy.max_attempts == 99


def test_a_consumer_has_its_groups_policy() -> None:
    group = SubscriptionGroupConfig("g", consume_message_orderly=True, retry_max_times=4)
    sent = consumer(fifo=False, receive_batch_size=1)
    sent.backoff_policy.max_attempts = 99
    sent.backoff_policy.exponential_backoff.multiplier = 9
    merged = settings_for(sent, group, ProxyConfig())
    assert merged.subscription.fifo
    assert merged.subscription.receive_batch_size == 32
    assert merged.subscription.long_polling_timeout == to_duration(20_000)
    assert merged.backoff_policy.max_attempts == 5
    delays = [delay.ToMilliseconds() for delay in merged.backoff_policy.customized_backoff.next]
    assert delays[:5] == [1000, 5000, 10_000, 30_000, 60_000]
    assert delays[-1] == 7_200_000
    assert len(delays) == 18


def test_a_policy_that_reckons() -> None:
    group = SubscriptionGroupConfig("g", group_retry_policy=EXPONENTIAL)
    policy = settings_for(consumer(), group, ProxyConfig()).backoff_policy
    assert policy == pb.RetryPolicy(
        max_attempts=17,
        exponential_backoff=pb.ExponentialBackoff(initial=to_duration(1000), max=to_duration(60_000), multiplier=3),
    )


def test_of_an_unknown_group_the_clients_word_counts() -> None:
    merged = settings_for(consumer(fifo=True), None, ProxyConfig())
    assert merged.subscription.fifo
    assert merged.subscription.receive_batch_size == 32
    assert merged.backoff_policy.max_attempts == 17


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (GroupRetryPolicy(), {-1: 10_000, 0: 10_000, 1: 30_000, 15: 7_200_000, 16: 7_200_000, 10**6: 7_200_000}),
        (GroupRetryPolicy(customized_retry_policy={"next": [1, 2, 3, 4]}), {0: 3, 1: 4, 2: 4}),
        (GroupRetryPolicy(customized_retry_policy={"next": [7]}), {0: 7}),
        (EXPONENTIAL, {0: 1000, 1: 3000, 3: 27_000, 4: 60_000, 10**9: 60_000}),
    ],
    ids=["levels", "customized", "one", "exponential"],
)
def test_delays(policy: GroupRetryPolicy, delays: dict[int, int]) -> None:
    assert {times: retry_delay_ms(policy, times) for times in delays} == delays


@pytest.mark.parametrize(
    "properties",
    [
        {f"p{n}": "v" for n in range(33)},
        {"": "v"},
        {"1st": "v"},
        {"with blank": "v"},
        {"a" * 65: "v"},
        {"p": "v" * 257},
        {f"p{n:02d}": "v" * 256 for n in range(17)},
    ],
    ids=["too many", "no name", "digit", "blank", "long name", "long value", "large"],
)
def test_properties_that_no_client_may_have(properties: dict[str, str]) -> None:
    with pytest.raises(ProxyError) as error:
        check_properties(properties)
    assert error.value.code == pb.INVALID_CLIENT_PROPERTIES


def test_properties_that_a_client_may_have() -> None:
    check_properties({})
    check_properties({"a" * 64: "v" * 256, "app.Name_1-x": ""})
