from __future__ import annotations

import pytest

from gantrymq.errors import ConfigError
from gantrymq.spark.options import ReadOptions, WriteOptions

GIVEN = {"nameserver": "ns1:9876; ns2:9876", "subscribe": "orders, returns"}


def parse(streaming: bool | None = None, **more: str) -> ReadOptions:
    return ReadOptions.parse(GIVEN | more, streaming=streaming)


def test_names_are_case_insensitive_and_lists_are_split() -> None:
    options = ReadOptions.parse({"NAMESERVER": "ns1:9876,ns2:9876", "subscribe": "orders,returns,orders"})
    assert options.name_servers == ["ns1:9876", "ns2:9876"]
    assert options.topics == ["orders", "returns"]
    assert options == parse()


def test_defaults_follow_the_kind_of_read() -> None:
    options = parse()
    assert options.fail_on_data_loss
    assert options.check_crc
    assert not options.include_properties
    assert options.starting_or_default(streaming=False).number != options.starting_or_default(streaming=True).number


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("subscirbe", "did you mean 'subscribe'"),
        ("startingoffset", "did you mean 'startingOffsets'"),
        ("kafka.bootstrap.servers", "there are checkCrc, consumerGroup"),
        ("topic", "no meaning in a read"),
    ],
)
def test_a_wrong_name_is_answered_with_a_right_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        parse(**{name: "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nameserver", "localhost"),
        ("subscribe", " , "),
        ("subscribe", "or ders"),
        ("consumergroup", "a b"),
        ("maxoffsetspertrigger", "0"),
        ("maxoffsetspertrigger", "many"),
        ("minpartitions", "-1"),
        ("failondataloss", "yes"),
        ("startingtimestamp", "2024-01-01"),
        ("retrytimeoutms", "-1"),
    ],
)
def test_wrong_values_name_their_option(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**{name: value})
    assert name in str(caught.value).lower()


def test_required_options() -> None:
    for name in GIVEN:
        with pytest.raises(ConfigError, match="is required"):
            ReadOptions.parse({key: value for key, value in GIVEN.items() if key != name})
    with pytest.raises(ConfigError, match="is required"):
        WriteOptions.parse({"topic": "t"})


def test_options_of_the_other_kind() -> None:
    with pytest.raises(ConfigError, match="streaming"):
        parse(True, endingoffsets="latest")
    with pytest.raises(ConfigError, match="batch"):
        parse(False, maxoffsetspertrigger="5")
    with pytest.raises(ConfigError, match="exclude each other"):
        parse(startingoffsets="latest", startingtimestamp="5")
    with pytest.raises(ConfigError, match="topic"):
        WriteOptions.parse({"nameserver": "a:1", "topic": "bad topic"})


def test_what_spark_adds_is_no_mistake() -> None:
    WriteOptions.parse({"nameserver": "a:1", "topic": "t", "checkpointlocation": "/tmp/x", "queryname": "q"})
