"""The command lines of `gantry bench`, with the options of Java's benchmarks. `bench_load` runs the load."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gantrymq.cli.admin.output import Output, Table, write
from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile
from gantrymq.cli.target import find_target
from gantrymq.system.clock import now_ms

app = new_app(
    no_args_is_help=True,
    help="Measure a cluster under load, with the options of Java's benchmarks.",
)

TOPIC = "BenchmarkTest"

Topic = Annotated[str, typer.Option("-t", "--topic")]
Interval = Annotated[
    float, typer.Option("-i", "--interval", min=0, help="Interval of the figures during the run, in seconds; 0: none.")
]
Json = Annotated[bool, typer.Option("--json", help="The figures as one JSON document.")]


@app.command("produce")
def bench_produce(
    topic: Topic = TOPIC,
    name_servers: NameServers = None,
    context: ContextName = None,
    size: Annotated[int, typer.Option("-s", "--messageSize", min=1, help="Bytes of a body.")] = 128,
    workers: Annotated[int, typer.Option("-w", "--threadCount", min=1, help="Requests in flight.")] = 64,
    batch: Annotated[int, typer.Option("-b", "--batchSize", min=1, help="Messages of a request.")] = 1,
    quantity: Annotated[int, typer.Option("-q", "--messageQuantity", min=0, help="0: until Ctrl-C.")] = 0,
    keys: Annotated[bool, typer.Option("-k", "--keyEnable", help="Messages have a key.")] = False,
    tag_count: Annotated[int, typer.Option("-l", "--tagCount", min=0, help="Different tags; 0: no tag.")] = 0,
    property_size: Annotated[int, typer.Option("-p", "--propertySize", min=0, help="Bytes of a property.")] = 0,
    delay_level: Annotated[int, typer.Option("-e", "--delayLevel", min=0, max=18, help="0: not delayed.")] = 0,
    trace: Annotated[bool, typer.Option("-m", "--msgTraceEnable", help="Trace the messages.")] = False,
    interval: Interval = 10,
    json: Json = False,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Send messages, and print their number and rate. The last figures are those of the whole run."""
    from gantrymq.cli.bench_load import Sends, run_sends
    from gantrymq.client.producing.producer import Producer

    if batch > 1 and delay_level:
        raise typer.BadParameter("delayed messages can't go in a batch", param_hint="'-e' / '--delayLevel'")
    target = find_target(name_servers, context, tls_config, acl_config)
    producer = Producer(
        target.name_servers,
        "benchmark_producer",
        enable_trace=trace,
        # No compression, like Java's benchmark without -c.
        compress_over=1 << 31,
        ssl_context=target.ssl_context,
        credentials=target.credentials,
    )
    sends = Sends(topic, size, workers, batch, quantity, keys, tag_count, property_size, delay_level)
    figures = run_sends(producer, sends, interval)
    _print(figures, json=json)
    if figures["requestsFailed"] or figures["responsesFailed"]:
        raise typer.Exit(1)


@app.command("consume")
def bench_consume(
    topic: Topic = TOPIC,
    name_servers: NameServers = None,
    context: ContextName = None,
    workers: Annotated[int, typer.Option("-w", "--threadCount", min=1, help="Messages handled at a time.")] = 20,
    group: Annotated[str, typer.Option("-g", "--group", help="Consumer group.")] = "benchmark_consumer",
    suffix: Annotated[bool, typer.Option("-p", "--groupSuffix", help="Give the group a new name each time.")] = False,
    from_first: Annotated[
        bool, typer.Option("--fromFirst", help="A new group begins with the topic's first message, not at its end.")
    ] = False,
    filter_type: Annotated[str, typer.Option("-f", "--filterType", help="TAG or SQL92.")] = "TAG",
    expression: Annotated[str, typer.Option("-e", "--expression", help="The filter.")] = "*",
    fail_rate: Annotated[float, typer.Option("-r", "--failRate", min=0, max=1, help="Messages to fail on.")] = 0.0,
    quantity: Annotated[int, typer.Option("-q", "--messageQuantity", min=0, help="0: until Ctrl-C.")] = 0,
    trace: Annotated[bool, typer.Option("-m", "--msgTraceEnable", help="Trace the messages.")] = False,
    interval: Interval = 10,
    json: Json = False,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Consume messages, and print their number, rate, and time since they were created and stored."""
    from gantrymq.cli.bench_load import run_reads
    from gantrymq.client.consuming.consumer_base import MessageFilter
    from gantrymq.client.consuming.handler_pool import MessageHandler
    from gantrymq.client.consuming.push_consumer import PushConsumer
    from gantrymq.protocol.bodies.heartbeat import CONSUME_FROM_LAST_OFFSET

    if filter_type not in ("TAG", "SQL92"):
        raise typer.BadParameter(f"{filter_type!r} is neither TAG nor SQL92", param_hint="'-f' / '--filterType'")

    target = find_target(name_servers, context, tls_config, acl_config)

    def consumer(handler: MessageHandler) -> PushConsumer:
        return PushConsumer(
            target.name_servers,
            f"{group}_{now_ms()}" if suffix else group,
            handler,
            concurrency=workers,
            start_from="earliest" if from_first else CONSUME_FROM_LAST_OFFSET,
            enable_trace=trace,
            ssl_context=target.ssl_context,
            credentials=target.credentials,
        )

    message_filter = MessageFilter(sql=expression) if filter_type == "SQL92" else MessageFilter(tags=expression)
    _print(run_reads(consumer, topic, message_filter, quantity, fail_rate, interval), json=json)


def _print(figures: dict[str, Any], *, json: bool) -> None:
    shown = {name: f"{value:,}" for name, value in figures.items()}
    write(Output(figures, [Table(["Figure", "Value"], list(shown.items()))]), json=json)
