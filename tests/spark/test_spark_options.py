from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, IntegerType, MapType, StringType, StructField, StructType

from gantrymq.client.credentials import Credentials
from gantrymq.contexts import Context, Contexts
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.read_schema import arrow_schema, check_selected, default_schema
from gantrymq.spark.store.options import StoreOptions

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
        ("kafka.bootstrap.servers", "there are accessKey, assign, bodyFormat"),
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
        ("maxbytespertrigger", "1g"),
        ("minpartitions", "-1"),
        ("minoffsetspertrigger", "0"),
        ("maxtriggerdelay", "soon"),
        ("maxtriggerdelay", "5"),
        ("maxrecordsperpartition", "0"),
        ("failondataloss", "yes"),
        ("startingtimestamp", "2024-01-01"),
        ("retrytimeoutms", "-1"),
        ("tags", "||"),
        ("tags", "A || "),
        ("tags", "A | B"),
        ("tags", "A, B"),
        ("tags", "A || *"),
        ("sql92", "a >"),
        ("sql92", "a LIKE 'x%'"),
    ],
)
def test_wrong_values_name_their_option(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**{name: value})
    assert name in str(caught.value).lower()


def test_required_options() -> None:
    for name in GIVEN:
        with pytest.raises(ConfigError, match=f"{name}.* is required".replace("nameserver", "nameServer")):
            ReadOptions.parse({key: value for key, value in GIVEN.items() if key != name})
    with pytest.raises(ConfigError, match="is required"):
        WriteOptions.parse({"topic": "t"})


def test_tables_of_the_catalog_are_refused_with_the_remedy() -> None:
    """Spark passes properties for CREATE TABLE without columns, and nothing for queries of a table."""
    created = GIVEN | {"option.nameserver": "a:1", "owner": "root", "provider": "rocketmq"}
    for refused in (
        lambda: ReadOptions.parse(created),
        lambda: StoreOptions.parse({"path": "/store", "provider": "rocketmq-store"}),
        lambda: ReadOptions.parse({}),
        lambda: WriteOptions.parse({}),
    ):
        with pytest.raises(ConfigError, match="use CREATE TEMPORARY VIEW"):
            refused()


def test_options_of_the_other_kind() -> None:
    with pytest.raises(ConfigError, match="streaming"):
        parse(True, endingoffsets="latest")
    with pytest.raises(ConfigError, match="batch"):
        parse(False, maxoffsetspertrigger="5")
    with pytest.raises(ConfigError, match="batch"):
        parse(False, maxbytespertrigger="5")
    with pytest.raises(ConfigError, match="exclude each other"):
        parse(startingoffsets="latest", startingtimestamp="5")
    with pytest.raises(ConfigError, match="topic"):
        WriteOptions.parse({"nameserver": "a:1", "topic": "bad topic"})


def test_how_long_a_micro_batch_waits() -> None:
    assert parse(True, minoffsetspertrigger="5").max_trigger_delay_ms == 15 * 60_000
    for text, delay_ms in {"7": 7, "500ms": 500, "30 s": 30_000, "2H": 7_200_000, "15min": 900_000}.items():
        assert parse(True, minoffsetspertrigger="5", maxtriggerdelay=text).max_trigger_delay_ms == delay_ms
    for text in ("5 weeks", "-1s", "1.5h", "1m30s"):
        with pytest.raises(ConfigError, match="is no duration"):
            parse(True, minoffsetspertrigger="5", maxtriggerdelay=text)
    with pytest.raises(ConfigError, match="6 is more than maxOffsetsPerTrigger, 5"):
        parse(True, minoffsetspertrigger="6", maxoffsetspertrigger="5")
    with pytest.raises(ConfigError, match="batch"):
        parse(False, minoffsetspertrigger="5")


def test_what_spark_adds_is_no_mistake() -> None:
    WriteOptions.parse({"nameserver": "a:1", "topic": "t", "checkpointlocation": "/tmp/x", "queryname": "q"})


def without_subscribe(**more: str) -> ReadOptions:
    return ReadOptions.parse({"nameserver": "a:1"} | more)


def test_three_ways_to_name_topics() -> None:
    assert without_subscribe(subscribepattern="orders-.*").pattern == "orders-.*"
    assigned = without_subscribe(assign='{"orders": ["broker-a:0", "b:x:3"], "returns": ["broker-a:1"]}')
    assert assigned.topics == ["orders", "returns"]
    assert assigned.assigned == [
        MessageQueue("orders", "broker-a", 0),
        MessageQueue("orders", "b:x", 3),
        MessageQueue("returns", "broker-a", 1),
    ]
    with pytest.raises(ConfigError, match="subscribe and subscribePattern exclude each other"):
        parse(subscribepattern="x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subscribepattern", "("),
        ("assign", "orders"),
        ("assign", '{"orders": 3}'),
        ("assign", '{"orders": ["broker-a"]}'),
        ("assign", '{"orders": [1]}'),
        ("assign", '{"or ders": ["broker-a:1"]}'),
        ("assign", "{}"),
    ],
)
def test_wrong_ways_to_name_topics(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        without_subscribe(**{name: value})
    assert name in str(caught.value).lower()


def test_one_filter_for_the_broker() -> None:
    assert parse().filter_expression == ("*", "TAG")
    assert parse(tags="A || B").filter_expression == ("A || B", "TAG")
    assert parse(sql92="a > 1").filter_expression == ("a > 1", "SQL92")
    assert [o.is_filtered for o in (parse(), parse(tags="*"), parse(tags="A"), parse(sql92="a > 1"))] == [
        False, False, True, True,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="tags and sql92 exclude each other"):
        parse(tags="A", sql92="a > 1")


def test_brokers_know_no_tags_of_delayed_messages() -> None:
    """These queues have times instead of tag codes, so a broker would return nothing or other messages."""
    for topics in ({"subscribe": "orders,SCHEDULE_TOPIC_XXXX"}, {"assign": '{"SCHEDULE_TOPIC_XXXX": ["broker-a:2"]}'}):
        with pytest.raises(ConfigError, match=r"option tags: .* a condition on the column tags"):
            without_subscribe(tags="A", **topics)
        assert without_subscribe(tags="*", **topics).tags is None


def test_times_of_topics_and_queues() -> None:
    starting = parse(startingoffsetsbytimestamp='{"orders": {"a:0": 5}, "returns": 7}').starting
    assert starting is not None
    queues = [MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1), MessageQueue("returns", "a", 1)]
    assert [starting.time_of(queue) for queue in queues] == [5, None, 7]
    assert starting.named() == {queues[0]}
    with pytest.raises(ConfigError, match="exclude each other"):
        parse(endingtimestamp="5", endingoffsetsbytimestamp='{"orders": 5}')
    for bad in ("5", "[]", '{"orders": "5"}', '{"orders": -1}', '{"orders": {"a": 5}}', '{"orders": {"a:0": null}}'):
        with pytest.raises(ConfigError, match="startingOffsetsByTimestamp"):
            parse(startingoffsetsbytimestamp=bad)


@pytest.mark.parametrize("value", ["1_0", "\u0661\u0660", "1e3", "0x10", "1" * 5000])
def test_what_is_no_whole_number(value: str) -> None:
    with pytest.raises(ConfigError, match=r"option maxPartitions: .* is no whole number"):
        parse(maxpartitions=value)


def test_names_in_any_case() -> None:
    assert ReadOptions.parse({"NAMESERVER": "a:1", "SubScribe": "orders", "MAXPARTITIONS": "3"}).max_partitions == 3


def test_keys_stay_secret() -> None:
    options = parse(accesskey="me", secretkey="hush", securitytoken="psst")
    assert options.security.credentials is not None
    assert options.security.credentials.secret_key == "hush"
    assert "hush" not in repr(options)
    assert "psst" not in repr(options)
    for half in ({"accesskey": "me"}, {"secretkey": "hush"}, {"securitytoken": "psst"}):
        with pytest.raises(ConfigError, match="accessKey and secretKey go together"):
            parse(**half)


def test_tls_files_are_looked_for_in_the_task() -> None:
    options = parse(**{"tls.enable": "true", "tls.client.authserver": "true", "tls.client.trustcertpath": "/no/ca.pem"})
    with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath=/no/ca\.pem"):
        options.security.remoting_client()


def test_options_travel_to_the_tasks() -> None:
    options = parse(accesskey="me", secretkey="hush", startingoffsets='{"orders": {"a:0": 5}}')
    assert pickle.loads(pickle.dumps(options)) == options


def test_properties_as_columns() -> None:
    options = parse(propertycolumns="country, retries")
    assert options.property_columns == ("country", "retries")
    schema = default_schema(
        include_properties=False, include_body_error=False, property_columns=options.property_columns
    )
    assert schema.names[-3:] == ["reconsumeTimes", "country", "retries"]
    assert arrow_schema(schema, options.property_columns).field("country").type == "string"
    with pytest.raises(ConfigError, match=r"no column 'country'.*propertyColumns"):
        arrow_schema(StructType([StructField("country", StringType())]))
    for wrong in ("Tags", "a, A"):
        with pytest.raises(ConfigError, match="option propertyColumns"):
            parse(propertycolumns=wrong)


def test_selected_columns() -> None:
    options = parse(columns="Body, country,tags", propertycolumns="country")
    schema = default_schema(
        include_properties=False,
        include_body_error=False,
        property_columns=options.property_columns,
        columns=options.columns,
    )
    assert schema == StructType(
        [StructField("body", BinaryType()), StructField("country", StringType()), StructField("tags", StringType())]
    )
    check_selected(schema, options.columns)
    check_selected(schema, ())
    with pytest.raises(ConfigError, match="leave one of them out"):
        check_selected(schema, ("body", "tags"))
    for wrong, problem in (("body, offset", "no column 'offset'"), ("body, Body", "'body' is there twice")):
        with pytest.raises(ConfigError, match=f"option columns: {problem}"):
            default_schema(include_properties=False, include_body_error=False, columns=parse(columns=wrong).columns)


def test_selected_columns_with_a_body_in_ddl() -> None:
    options = parse(columns="value,queueOffset", bodyformat="json", bodyschema="id BIGINT")
    schema = default_schema(
        include_properties=False, include_body_error=False, body=options.body, columns=options.columns
    )
    assert schema == "`value` STRUCT<id BIGINT>, `queueOffset` bigint"


BODY = StructField("body", BinaryType())
PROPERTIES = MapType(StringType(), StringType())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([BODY, StructField("tags", StringType(), nullable=False)], "column tags is not null"),
        ([StructField("properties", PROPERTIES, nullable=False)], "column properties is not null"),
        ([StructField("properties", MapType(StringType(), StringType(), False))], "column properties is not null"),
        ([BODY, StructField("queueId", IntegerType()), BODY], "column body is in the schema twice"),
        ([StructField("body", StringType())], "column body is binary, not string"),
        ([StructField("bodies", BinaryType())], "no column 'bodies'"),
    ],
)
def test_schemas_that_no_read_has(fields: list[StructField], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arrow_schema(StructType(fields))


# -- contexts -------------------------------------------------------------------------------------------------------


READER = Credentials("reader", "12345678")


@pytest.fixture
def prod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the name of a context with keys and TLS."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    keys, of_tls = tmp_path / "tools.yml", tmp_path / "tls.properties"
    keys.write_text("accessKey: reader\nsecretKey: 12345678\n")
    of_tls.write_text("tls.client.authServer=true\ntls.client.trustCertPath=/etc/ca.pem\n")
    Contexts().add("prod", Context("ns1:9876;ns2:9876", str(keys), str(of_tls)))
    return "prod"


def test_a_context_has_addresses_keys_and_tls(prod: str) -> None:
    options = ReadOptions.parse({"context": prod, "subscribe": "orders"})
    assert options.name_servers == ["ns1:9876", "ns2:9876"]
    assert options.security.credentials == READER
    assert options.security.tls.tls_enable
    assert options.security.tls.tls_client_trust_cert_path == Path("/etc/ca.pem")
    # Spark stores only the context's name. The tasks get the keys with the reader.
    assert "12345678" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert WriteOptions.parse({"context": prod, "topic": "t"}).security == options.security


def test_an_address_beside_a_context(prod: str) -> None:
    options = parse(context=prod)
    assert (options.name_servers, options.security.credentials) == (["ns1:9876", "ns2:9876"], READER)
    options = ReadOptions.parse({"context": prod, "nameserver": "other:1", "subscribe": "orders"})
    assert (options.name_servers, options.security.credentials) == (["other:1"], READER)


def test_contexts_that_cannot_be_used(prod: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no context 'lost'; known: prod"):
        parse(context="lost")
    for name in ("accesskey", "tls.enable"):
        with pytest.raises(ConfigError, match="exclude each other"):
            parse(context=prod, **{name: "true"})
    with pytest.raises(ConfigError, match="nameServer is required, or option context"):
        ReadOptions.parse({"subscribe": "orders"})
    (tmp_path / "tools.yml").write_text("accessKey: reader\nsecretKey: [12345678\n")
    with pytest.raises(ConfigError) as caught:
        parse(context=prod)
    assert "12345678" not in str(caught.value)
