"""Headers about a broker's configuration and figures, and how far behind groups are."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header


class GetBrokerConfigResponseHeader(Header):
    """Answer to GET_BROKER_CONFIG (26): a DataVersion in JSON."""

    version: str


class ViewBrokerStatsDataRequestHeader(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class GetConsumeStatsRequestHeader(Header):
    """GET_CONSUME_STATS (208); `topic_list` separates names by semicolons and goes before `topic`."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStatsInBrokerHeader(Header):
    """GET_BROKER_CONSUME_STATS (317); `is_order` leaves out topics that keep no order."""

    is_order: bool = False


class QueryConsumeTimeSpanRequestHeader(Header):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str
