"""The command lines of `gantry spark`."""

from __future__ import annotations

import asyncio

from gantrymq.cli.lazy import new_app
from gantrymq.cli.options import AclConfigFile, ContextName, NameServers, TlsConfigFile
from gantrymq.cli.target import Target, find_target, named_context

app = new_app(no_args_is_help=True)


@app.callback()
def spark() -> None:
    """Write SQL statements for Spark."""


@app.command()
def tables(
    name_servers: NameServers = None,
    context: ContextName = None,
    tls_config: TlsConfigFile = None,
    acl_config: AclConfigFile = None,
) -> None:
    """Write a CREATE TEMPORARY VIEW statement with its columns for each topic of a cluster.

    Run the output in spark-sql or a notebook. With --context, the views use the keys and the TLS settings of the
    context. Otherwise, they have only the address of the NameServers.
    """
    from gantrymq.extras import need

    need("spark", "gantry spark tables")
    from gantrymq.spark.views import view_statements

    target = find_target(name_servers, context, tls_config, acl_config)
    options = {}
    if (named := named_context(name_servers, context)) is not None:
        options["context"] = named
    if named is None or name_servers is not None:
        options["nameServer"] = target.name_servers
    for statement in view_statements(asyncio.run(_topics(target)), options):
        print(statement)


async def _topics(target: Target) -> list[str]:
    """Returns the topics of the cluster, without the topics that are named after a cluster or a broker."""
    from gantrymq.client.admin.client import AdminClient
    from gantrymq.client.producing.request_reply import reply_topic

    async with AdminClient(
        target.name_servers, ssl_context=target.ssl_context, credentials=target.credentials
    ) as admin:
        info = await admin.cluster_info()
        clusters = info.cluster_addr_table.keys()
        own = {*clusters, *map(reply_topic, clusters), *info.broker_addr_table}
        return [topic for topic in await admin.topic_list() if topic not in own]
