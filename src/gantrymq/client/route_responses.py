"""RouteResponse: the response of one NameServer for a topic. `joined` merges several responses into one route."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gantrymq.protocol.bodies.route import TopicRouteData


class RouteResponse(NamedTuple):
    """Response of a NameServer. `route` is None if the NameServer has no route of the topic.

    `awaited` has brokers of the topic that the route lacks: they registered before the NameServer's restart, but not
    yet after it. `awaited` is empty after one registration period, and for Java's NameServer.
    """

    route: TopicRouteData | None
    awaited: frozenset[str] = frozenset()


def joined(answers: Sequence[RouteResponse], known: TopicRouteData | None) -> RouteResponse:
    """Merges all responses, and adds the awaited brokers of the older route `known`."""
    awaited = frozenset().union(*(answer.awaited for answer in answers))
    routes = [answer.route for answer in answers if answer.route is not None]
    names = {queues.broker_name for route in routes for queues in route.queue_datas}
    if known is not None:
        kept = _only(known, awaited - names)
        routes.append(kept)
        names.update(queues.broker_name for queues in kept.queue_datas)
    return RouteResponse(_union(routes) if names else None, awaited - names)


def _only(route: TopicRouteData, names: frozenset[str]) -> TopicRouteData:
    """Returns a route with only these brokers."""
    mappings = route.topic_queue_mapping_by_broker
    return TopicRouteData(
        [queues for queues in route.queue_datas if queues.broker_name in names],
        [broker for broker in route.broker_datas if broker.broker_name in names],
        {},
        route.order_topic_conf,
        None if mappings is None else {name: mapping for name, mapping in mappings.items() if name in names},
    )


def _union(routes: Iterable[TopicRouteData]) -> TopicRouteData:
    """Merges routes. If several routes contain a broker, the first of these routes wins."""
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
