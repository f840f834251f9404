"""Headers of requests about a broker's configuration and statistics, and about the lag of groups."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header


class GetBrokerConfigResponseHeader(Header):
    """The response to GET_BROKER_CONFIG (26): a DataVersion in JSON."""

    version: str


class ViewBrokerStatsDataRequestHeader(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class GetConsumeStatsRequestHeader(Header):
    """GET_CONSUME_STATS (208). `topic_list` has names separated by semicolons and overrides `topic`."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStatsInBrokerHeader(Header):
    """GET_BROKER_CONSUME_STATS (317). With `is_order`, only topics with ordered messages are included."""

    is_order: bool = False


class QueryConsumeTimeSpanRequestHeader(Header):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str
