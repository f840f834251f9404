"""All pages, in the order of the navigation."""

from __future__ import annotations

from gantrymq.console.listing import ListArguments
from gantrymq.console.pages import Page
from gantrymq.console.queries import (
    charts,
    dead_letters,
    due,
    groups,
    letters,
    members,
    messages,
    producers,
    receipts,
    replicas,
    rights,
    servers,
    streams,
    topics,
    users,
    waiting,
    works,
)
from gantrymq.console.tail import TailArguments, TailPage, tail_page

PAGES = (
    Page("overview", "Overview", servers.Nothing, servers.overview, servers.Overview, "Overview", 5),
    Page("brokers", "Brokers", ListArguments, servers.brokers, servers.Brokers, "Brokers", 5),
    Page("broker", "Broker", servers.BrokerArguments, servers.broker, servers.BrokerPage),
    Page("topics", "Topics", topics.TopicsArguments, topics.topics, topics.Topics, "Topics", 10),
    Page("topic", "Topic", topics.TopicArguments, topics.topic, topics.TopicPage, again_s=10),
    Page("groups", "Consumer groups", groups.GroupsArguments, groups.groups, groups.Groups, "Groups", 10),
    Page("group", "Consumer group", groups.GroupArguments, groups.group, groups.GroupPage, again_s=10),
    Page("member", "Consumer", members.MemberArguments, members.member, members.MemberPage),
    Page("streams", "Streams", streams.StreamsArguments, streams.streams, streams.StreamsPage, "Streams"),
    Page("producers", "Producers", ListArguments, producers.producers, producers.ProducersPage, "Producers"),
    Page("messages", "Messages", messages.MessagesArguments, messages.messages, messages.MessagesPage, "Messages"),
    Page("message", "Message", messages.MessageArguments, messages.message, messages.MessagePage),
    Page("tail", "Live tail", TailArguments, tail_page, TailPage, "Live tail"),
    Page("traces", "Traces", messages.TracesArguments, messages.traces, messages.TracesPage, "Traces"),
    Page(
        "dead-letters",
        "Dead letters",
        ListArguments,
        dead_letters.dead_letters,
        dead_letters.DeadLettersPage,
        "Dead letters",
    ),
    Page("letters", "Dead letters", letters.LettersArguments, letters.letters, letters.LettersPage),
    Page("works", "Under way", servers.Nothing, works.works, works.WorksPage, again_s=2),
    Page("delays", "Delayed messages", servers.Nothing, waiting.delays, waiting.DelaysPage, "Delays", 10),
    Page("due", "Delayed messages by time", due.DueArguments, due.due, due.DuePage),
    Page("receipts", "Popped messages", ListArguments, receipts.receipts, receipts.ReceiptsPage, "Popped"),
    Page(
        "transactions", "Transactions", servers.Nothing, waiting.transactions, waiting.TransactionsPage, "Transactions"
    ),
    Page("replicas", "Replicas", servers.Nothing, replicas.replicas, replicas.ReplicasPage, "Replicas", 5),
    Page("users", "Users", ListArguments, users.users, users.UsersPage, "Users"),
    Page("rights", "What a user may do", rights.RightsArguments, rights.rights, rights.RightsPage),
    Page("history", "History", charts.HistoryArguments, charts.charts, charts.HistoryPage, "History"),
)
