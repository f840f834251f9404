"""RouteAnswer: what one NameServer answers about a topic, and how the answers of several make one route."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gantrymq.protocol.bodies.route import TopicRouteData


class RouteAnswer(NamedTuple):
    """`route` is None if the NameServer doesn't know the topic.

    `awaited` are brokers of the topic that the NameServer had before its restart, that haven't registered since, and
    that the route lacks. Empty once it has been running for a registration period, and for Java's NameServer.
    """

    route: TopicRouteData | None
    awaited: frozenset[str] = frozenset()


def joined(answers: Sequence[RouteAnswer], known: TopicRouteData | None) -> RouteAnswer:
    """The brokers of all answers; of `known`, an older route, only brokers that are awaited."""
    awaited = frozenset().union(*(answer.awaited for answer in answers))
    routes = [answer.route for answer in answers if answer.route is not None]
    names = {queues.broker_name for route in routes for queues in route.queue_datas}
    if known is not None:
        kept = _only(known, awaited - names)
        routes.append(kept)
        names.update(queues.broker_name for queues in kept.queue_datas)
    return RouteAnswer(_union(routes) if names else None, awaited - names)


def _only(route: TopicRouteData, names: frozenset[str]) -> TopicRouteData:
    """The part of a route that is on these brokers."""
    mappings = route.topic_queue_mapping_by_broker
    return TopicRouteData(
        [queues for queues in route.queue_datas if queues.broker_name in names],
        [broker for broker in route.broker_datas if broker.broker_name in names],
        {},
        route.order_topic_conf,
        None if mappings is None else {name: mapping for name, mapping in mappings.items() if name in names},
    )


def _union(routes: Iterable[TopicRouteData]) -> TopicRouteData:
    """Each broker as the first of the routes has it that names it."""
    routes = list(routes)
    queues = {queues.broker_name: queues for route in reversed(routes) for queues in route.queue_datas}
    brokers = {broker.broker_name: broker for route in reversed(routes) for broker in route.broker_datas}
    mappings = [route.topic_queue_mapping_by_broker or {} for route in reversed(routes)]
    mapping = {name: of_broker for of_route in mappings for name, of_broker in of_route.items()}
    return TopicRouteData(
        [queues[name] for name in sorted(queues)],
        [brokers[name] for name in sorted(brokers)],
        {address: servers for route in reversed(routes) for address, servers in route.filter_server_table.items()},
        next((route.order_topic_conf for route in routes if route.order_topic_conf), None),
        mapping or None,
    )
