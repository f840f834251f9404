"""The list of all pages, in the order of the navigation."""

from __future__ import annotations

from gantrymq.console.listing import ListArguments
from gantrymq.console.pages import Page
from gantrymq.console.queries import (
    charts,
    dead_letter_messages,
    dead_letter_queues,
    delayed_messages,
    delays,
    groups,
    lite_topics,
    members,
    messages,
    operations,
    overview,
    popped_messages,
    producers,
    replicas,
    rights,
    search,
    servers,
    streams,
    topics,
    transactions,
    users,
)
from gantrymq.console.tail import TailArguments, TailPage, tail_page

DATA, CONSUMERS, CLUSTER, SECURITY = "Data", "Consumers", "Cluster", "Security"

PAGES = (
    Page("overview", "Overview", servers.Nothing, overview.overview, overview.Overview, "Overview", again_s=5),
    Page("search", "Search", search.SearchArguments, search.search, search.SearchPage),
    # -- data
    Page("topics", "Topics", topics.TopicsArguments, topics.topics, topics.Topics, "Topics", DATA, again_s=10),
    Page("topic", "Topic", topics.TopicArguments, topics.topic, topics.TopicPage, "", DATA, "topics", 10),
    Page(
        "messages", "Messages", messages.MessagesArguments, messages.messages, messages.MessagesPage, "Messages", DATA
    ),
    Page("message", "Message", messages.MessageArguments, messages.message, messages.MessagePage, "", DATA, "topics"),
    Page("tail", "Live tail", TailArguments, tail_page, TailPage, "Live tail", DATA),
    Page(
        "dead-letters",
        "Dead letters",
        ListArguments,
        dead_letter_queues.dead_letter_queues,
        dead_letter_queues.DeadLetterQueuesPage,
        "Dead letters",
        DATA,
    ),
    Page(
        "dead-letter-messages",
        "Dead letters",
        dead_letter_messages.DeadLetterMessagesArguments,
        dead_letter_messages.dead_letter_messages,
        dead_letter_messages.DeadLetterMessagesPage,
        "",
        DATA,
        "dead-letters",
    ),
    Page("delays", "Delayed messages", servers.Nothing, delays.delays, delays.DelaysPage, "Delayed", DATA, again_s=10),
    Page(
        "due",
        "Delayed messages by time",
        delayed_messages.DueArguments,
        delayed_messages.due,
        delayed_messages.DuePage,
        "",
        DATA,
        "delays",
    ),
    Page(
        "transactions",
        "Transactions",
        servers.Nothing,
        transactions.transactions,
        transactions.TransactionsPage,
        "Transactions",
        DATA,
    ),
    Page(
        "lite-topics",
        "Lite topics",
        lite_topics.LiteTopicsArguments,
        lite_topics.lite_topics,
        lite_topics.LiteTopicsPage,
        "Lite topics",
        DATA,
        again_s=10,
    ),
    Page(
        "lite-group",
        "Group of lite topics",
        lite_topics.LiteGroupArguments,
        lite_topics.lite_group,
        lite_topics.LiteGroupPage,
        "",
        DATA,
        "lite-topics",
        10,
    ),
    Page("producers", "Producers", ListArguments, producers.producers, producers.ProducersPage, "Producers", DATA),
    # -- consumers
    Page(
        "groups", "Consumer groups", groups.GroupsArguments, groups.groups, groups.Groups, "Groups", CONSUMERS, "", 10
    ),
    Page("group", "Consumer group", groups.GroupArguments, groups.group, groups.GroupPage, "", CONSUMERS, "groups", 10),
    Page("member", "Consumer", members.MemberArguments, members.member, members.MemberPage, "", CONSUMERS, "groups"),
    Page("streams", "Streams", streams.StreamsArguments, streams.streams, streams.StreamsPage, "Streams", CONSUMERS),
    Page(
        "receipts",
        "Messages in flight",
        ListArguments,
        popped_messages.popped_messages,
        popped_messages.PoppedMessagesPage,
        "In flight",
        CONSUMERS,
    ),
    Page("traces", "Traces", messages.TracesArguments, messages.traces, messages.TracesPage, "Traces", CONSUMERS),
    # -- the cluster
    Page("brokers", "Brokers", ListArguments, servers.brokers, servers.Brokers, "Brokers", CLUSTER, again_s=5),
    Page("broker", "Broker", servers.BrokerArguments, servers.broker, servers.BrokerPage, "", CLUSTER, "brokers"),
    Page("replicas", "Replicas", servers.Nothing, replicas.replicas, replicas.ReplicasPage, "Replicas", CLUSTER, "", 5),
    Page(
        "controllers",
        "Controllers",
        servers.Nothing,
        replicas.controllers,
        replicas.ControllersPage,
        "Controllers",
        CLUSTER,
        again_s=5,
    ),
    Page("history", "History", charts.HistoryArguments, charts.charts, charts.HistoryPage, "History", CLUSTER),
    Page(
        "operations",
        "Operations",
        servers.Nothing,
        operations.operations,
        operations.OperationsPage,
        "Operations",
        CLUSTER,
        again_s=2,
    ),
    # -- security
    Page("users", "Users", ListArguments, users.users, users.UsersPage, "Users", SECURITY),
    Page("rights", "Rights of a user", rights.RightsArguments, rights.rights, rights.RightsPage, "Rights", SECURITY),
)
