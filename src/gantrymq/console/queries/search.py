"""The search of all pages: topics, groups and message ids."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from gantrymq.console.cluster_view import ClusterView, Servers
from gantrymq.console.fan_out import Unasked, query_each
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.kinds import is_tools_group, topic_kind
from gantrymq.console.queries.messages import MessageRow, rows_of
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import BrokerError, ProtocolError, RemotingError
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.system.clock import monotonic

#: Largest size of the searched text, characters: the size of the longest group name.
MAX_TEXT = 255
#: Largest number of topics and of groups in the result. The page shows how many match in total.
MAX_SHOWN = 20
#: Largest number of topics in which a unique key is searched. Each search queries all brokers of the topic.
MAX_TOPICS_WITH_ID = 200
#: Limits of a search for a unique key: number of topics that are searched at the same time, and total time, s.
_TOPICS_AT_ONCE = 8
_SEARCH_WITHIN_S = 10.0
#: Matches a unique key, a key of a gRPC client (34 digits), or an offset message id with an IPv4 or IPv6 address.
_MESSAGE_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{34}|[0-9A-Fa-f]{56}")


class SearchArguments(msgspec.Struct):
    """Searches for topics and groups whose name contains `q`, and for the message with this id."""

    q: str = ""


class SearchPage(msgspec.Struct):
    """The result. Names equal to `q` come first. `topics_found` and `groups_found` count all matching names."""

    q: str
    topics: list[str]
    topics_found: int
    groups: list[str]
    groups_found: int
    #: The messages with this id, of different topics.
    messages: list[MessageRow]
    is_message_id: bool
    #: False while topics or groups are still queried. The search for a message id needs only the topics.
    is_complete: bool
    unasked: list[Unasked]


async def search(view: ClusterView, arguments: SearchArguments) -> SearchPage:
    """Returns the names that contain a text, and the message with this id. Raises BadArguments."""
    text = arguments.q.strip()
    if len(text) > MAX_TEXT:
        raise BadArguments(f"the search has {len(text)} characters: at most {MAX_TEXT} are allowed")
    is_id = _MESSAGE_ID.fullmatch(text) is not None
    page = SearchPage(text, [], 0, [], 0, [], is_id, True, [])
    if not text:
        return page
    topics, groups, servers = await asyncio.gather(view.topics.get(), view.groups.get(), servers_of(view))
    page.is_complete = topics is not None and (groups is not None or is_id)
    if groups is not None:
        page.unasked += groups.unasked
        page.groups, page.groups_found = _matching(text, [name for name in groups.progress if not is_tools_group(name)])
    if topics is None:
        return page
    page.unasked += topics.unasked
    page.topics, page.topics_found = _matching(text, topics.seen)
    if is_id:
        names = sorted(name for name in topics.seen if topic_kind(name, servers) != "system")
        page.messages, unasked = await _with_id(view, text, names, servers)
        page.unasked += unasked
    # A server can fail in several queries.
    page.unasked = list({one.what: one for one in page.unasked}.values())
    return page


def _matching(text: str, names: Iterable[str]) -> tuple[list[str], int]:
    """Returns the first names that contain the text, and how many names contain it."""
    wanted = text.casefold()
    found = [name for name in names if wanted in name.casefold()]
    found.sort(key=lambda name: (name.casefold() != wanted, name.startswith("%"), len(name), name))
    return found[:MAX_SHOWN], len(found)


async def _with_id(
    view: ClusterView, message_id: str, topics: list[str], servers: Servers
) -> tuple[list[MessageRow], list[Unasked]]:
    """Returns the message at the position in an offset message id, or the messages with this unique key in any topic.

    Also returns the failed queries.
    """
    brokers = servers.info.broker_addr_table.values()
    with suppress(ProtocolError, BrokerError):
        address, _ = decode_offset_message_id(message_id)
        # A unique key can have the same length as an id with an IPv4 address, but its address bytes match no broker.
        if any(address in broker.broker_addrs.values() for broker in brokers):
            try:
                async with view.bodies:
                    message = await view.admin.message_by_offset_id(message_id)
                    if view.settings.login == "cluster":
                        # Java brokers check the user's rights only for a topic in the request.
                        message = await view.admin.message_by_offset_id(message_id, message.topic)
                    return await rows_of(view, [message]), []
            except RemotingError as e:
                return [], [Unasked(address, str(e))]
    unasked: list[Unasked] = []
    if len(topics) > MAX_TOPICS_WITH_ID:
        more = f"{len(topics) - MAX_TOPICS_WITH_ID} topics"
        unasked.append(Unasked(more, f"only {MAX_TOPICS_WITH_ID} are searched"))

    async def find(topic: str) -> list[MessageRow]:
        # Rows are returned, not messages. A sender can reuse a unique key, and the bodies of many messages could take
        # much memory.
        async with view.bodies:
            # The timeout starts after the wait for `bodies`.
            responses = await view.each(
                await view.admin.holders(topic),
                lambda address: view.admin.messages_by_unique_key(topic, message_id, max_num=1, broker=address),
            )
            unasked.extend(responses.unasked)
            return await rows_of(view, [message for found in responses.results.values() for message in found])

    found: list[MessageRow] = []
    searched, until = topics[:MAX_TOPICS_WITH_ID], monotonic() + _SEARCH_WITHIN_S
    for first in range(0, len(searched), _TOPICS_AT_ONCE):
        if monotonic() >= until:
            unasked.append(Unasked(f"{len(searched) - first} topics", f"not searched in {_SEARCH_WITHIN_S:g} s"))
            break
        responses = await query_each(searched[first : first + _TOPICS_AT_ONCE], find, None)
        unasked += responses.unasked
        found += [row for topic in sorted(responses.results) for row in responses.results[topic]]
    return found, unasked
