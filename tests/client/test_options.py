"""Each client's options are defined once: signature, help text and documentation come from the dataclass."""

from __future__ import annotations

import inspect
import re
import ssl
import typing
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from typing import Any

import pytest

import gantrymq
from gantrymq import (
    AdminClient,
    FlowLimits,
    LitePullConsumer,
    LitePushConsumer,
    LiteSimpleConsumer,
    PopOptions,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
)
from gantrymq.client.admin.base import AdminOptions, transport_of
from gantrymq.client.consuming.options import LitePullConsumerOptions
from gantrymq.client.consuming.push_consumer import PushConsumerOptions
from gantrymq.client.options import ClientOptions
from gantrymq.client.popping.lite_consumer import LiteConsumerOptions
from gantrymq.client.popping.lite_push_consumer import LitePushConsumerOptions
from gantrymq.client.popping.simple_consumer import SimpleConsumerOptions
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.client.producing.transaction_producer import TransactionProducerOptions
from gantrymq.errors import ClientError, GantryError, IllegalMessage
from gantrymq.integrations.in_flight import ConnectionOptions
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.signatures import SigningHook
from gantrymq.sync import SyncLitePullConsumer

OPTIONS: dict[Any, Any] = {
    AdminClient: AdminOptions,
    Producer: ProducerOptions,
    TransactionProducer: TransactionProducerOptions,
    PushConsumer: PushConsumerOptions,
    LitePullConsumer: LitePullConsumerOptions,
    SimpleConsumer: SimpleConsumerOptions,
    LiteSimpleConsumer: LiteConsumerOptions,
    LitePushConsumer: LitePushConsumerOptions,
    FlowLimits: FlowLimits,
    PopOptions: PopOptions,
}
ADDRESS = "127.0.0.1:9876"


def handle(message: MessageExt) -> None:
    """Does nothing."""


@pytest.mark.parametrize("client", OPTIONS, ids=lambda client: client.__name__)
def test_signature_and_help_have_the_options(client: type) -> None:
    by_name: dict[str, Field[Any]] = {each.name: each for each in fields(OPTIONS[client])}
    parameters = inspect.signature(client).parameters
    assert parameters.keys() == by_name.keys()
    for name, parameter in parameters.items():
        default = by_name[name].default
        assert parameter.default == (inspect.Parameter.empty if default is MISSING else default)
        assert parameter.annotation == by_name[name].type
    told = re.findall(r"^    (\w+): (.+)", inspect.getdoc(client.__init__) or "", re.MULTILINE)  # type: ignore[misc]
    assert [name for name, _ in told] == list(parameters)


@pytest.mark.parametrize("client", OPTIONS, ids=lambda client: client.__name__)
def test_a_time_or_size_has_its_unit(client: type) -> None:
    for each in fields(OPTIONS[client]):
        assert not re.search("_(ms|s)$", each.name)
        if each.name.endswith("_bytes"):
            assert "bytes" in each.metadata["doc"].lower(), each.name
        if "timedelta" in str(each.type):
            assert "in seconds" in each.metadata["doc"], each.name


@pytest.mark.parametrize("name", [name for name in gantrymq.__all__ if isinstance(getattr(gantrymq, name), type)])
def test_durations_are_in_seconds(name: str) -> None:
    """No parameter of a public class has a unit in its name, and timeouts are passed by name."""
    kind = getattr(gantrymq, name)
    methods = inspect.getmembers(
        kind, lambda member: inspect.isfunction(member) and not member.__name__.startswith("_")
    )
    for method_name, method in methods:
        for parameter in inspect.signature(method).parameters.values():
            assert not re.search("_(ms|s)$", parameter.name), f"{name}.{method_name}({parameter.name})"
            if "timeout" in parameter.name:
                assert parameter.kind is parameter.KEYWORD_ONLY, f"{name}.{method_name}({parameter.name})"
                assert parameter.annotation == "float | timedelta", f"{name}.{method_name}({parameter.name})"


def test_positional_arguments() -> None:
    for client, expected in (
        (Producer, ["name_servers", "group"]),
        (TransactionProducer, ["name_servers", "group", "listener"]),
        (PushConsumer, ["name_servers", "group", "handler"]),
        (LitePullConsumer, ["name_servers", "group"]),
        (SimpleConsumer, ["name_servers", "group"]),
        (LiteSimpleConsumer, ["name_servers", "group", "bind_topic"]),
        (LitePushConsumer, ["name_servers", "group", "bind_topic", "handler"]),
        (AdminClient, ["name_servers"]),
    ):
        parameters = inspect.signature(client).parameters.values()
        assert [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY] == expected


def test_options_are_frozen() -> None:
    options = ProducerOptions(ADDRESS, "group", retry_times=1)
    with pytest.raises(FrozenInstanceError):
        options.retry_times = 2  # type: ignore[misc]
    assert not hasattr(options, "__dict__")


def test_integrations_have_options_of_the_clients() -> None:
    of_clients = typing.get_type_hints(ClientOptions)
    for name, hint in typing.get_type_hints(ConnectionOptions).items():
        assert hint == of_clients[name]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"pull_batch_size": 1025}, r"pull_batch_size=1025: must be a whole number, 1 to 1024"),
        ({"pull_batch_size": "32"}, r"pull_batch_size='32': must be a whole number"),
        ({"group": "with spaces"}, "illegal characters"),
        ({"namespace": "with spaces"}, "illegal characters"),
        ({"name_servers": "127.0.0.1"}, "'127.0.0.1' is no HOST:PORT"),
        ({"ssl_context": True}, "ssl_context=True"),
        ({"unit_name": "cell/1"}, "unit_name='cell/1': must consist of letters"),
        ({"unit_name": None}, "unit_name=None"),
        ({"hooks": SigningHook}, "hooks=.*must be a list"),
        ({"credentials": ("key", "hush")}, r"^credentials: must be Credentials\(access_key, secret_key\) or None$"),
        ({"middleware": None}, "middleware=None: must be a list"),
        ({"middleware": [SigningHook]}, "objects of subclasses of Middleware"),
    ],
    ids=str,
)
def test_consumers_check_their_options(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(GantryError, match=why):
        LitePullConsumer(**({"name_servers": ADDRESS, "group": "group"} | arguments))


@pytest.mark.parametrize(
    ("message_filter", "why"),
    [
        ({"tags": "a", "sql": "b IS NULL"}, r"tags and sql exclude each other: .* sql=\"TAGS = 'a' AND ...\""),
        ({"tags": ["a", "b"]}, r"^tags=\['a', 'b'\]: must be a string or None"),
        ({"tags": " || "}, "names no tag: 'TagA || TagB'"),
        ({"sql": 1}, "^sql=1: must be a string or None"),
        ({"sql": ""}, "needs an expression"),
    ],
    ids=str,
)
def test_consumers_check_their_filters(message_filter: dict[str, Any], why: str) -> None:
    for consumer in (LitePullConsumer(ADDRESS, "group"), SyncLitePullConsumer(LitePullConsumer(ADDRESS, "group"))):
        with pytest.raises(ClientError, match=why):
            consumer.subscribe("topic", **message_filter)
    with pytest.raises(TypeError, match="positional"):
        LitePullConsumer(ADDRESS, "group").subscribe("topic", "a")  # type: ignore[misc]


def test_every_client_checks_its_hooks() -> None:
    for name, make in {
        "middleware": lambda: Producer(ADDRESS, "group", middleware=1),  # type: ignore[arg-type]
        "hooks": lambda: AdminClient(hooks=1),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(ClientError, match=f"^{name}=1"):
            make()


def test_group_and_context_of_a_client() -> None:
    with pytest.raises(IllegalMessage, match="group=None"):
        SimpleConsumer(ADDRESS, None)  # type: ignore[arg-type]
    assert ClientOptions(ADDRESS, "group", namespace="shop").wire_group == "shop%group"
    context = ssl.create_default_context()
    assert transport_of(AdminClient(ssl_context=context)).options.ssl_context is context


def test_an_unknown_option() -> None:
    with pytest.raises(TypeError, match="retries"):
        Producer(ADDRESS, "group", retries=3)  # type: ignore[call-arg]
