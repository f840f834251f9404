"""All limits on the resources of a server that peers may use.

A `Limit` holds for all peers of one server together. One host gets at most half of a limit, and one connection a
quarter. The rule is in `remoting/quota.py`. The other limits are constants. They need no shares: the module in the
comment describes the order in which it refuses, delays or closes the items that it counts.

`memory_of` is the sum of the limits of a server: about the largest memory that hostile peers can use, in addition to
the server's own tables and caches. Three limits have configuration keys: WAITING_POPS is the default of
`maxPopPollingSize`, DEDUPLICATION_IDS of `deduplicationMaxNum`, LITE_SUBSCRIPTIONS of `maxLiteSubscriptionCount`.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on items of peers, for example requests that wait, and on the bytes of these items.

    Attributes:
        name: Name of the limited items in errors.
        servers: The servers that have the limit.
        items: The largest number of items of all peers.
        size: The largest size of all items, in bytes. A single item may be larger.
        items_of_one: The most items of one connection.
        size_of_one: The most bytes of one connection's items.
        reason: Why the numbers are as they are.
    """

    name: str
    servers: tuple[str, ...]
    items: int
    size: int
    items_of_one: int
    size_of_one: int
    reason: str


#: The servers of the remoting protocol. The proxy has a port for this protocol and another for gRPC.
_REMOTING = ("broker", "NameServer", "controller", "proxy")

RESPONSE_TASKS = Limit(
    "requests that tasks answer",
    _REMOTING,
    items=10_000,
    size=64 * MIB,
    items_of_one=1_000,
    size_of_one=16 * MIB,
    reason="as many as replyThreadPoolQueueCapacity in Java",
)
LONG_REQUESTS = Limit(
    "long requests that wait for their next step",
    _REMOTING,
    items=20_000,
    size=64 * MIB,
    items_of_one=5_000,
    size_of_one=16 * MIB,
    reason="Java's queue of sends has 10,000 requests",
)
PREALLOCATION_WAITS = Limit(
    "requests that wait for a preallocated file",
    ("broker",),
    items=200_000,
    size=256 * MIB,
    items_of_one=50_000,
    size_of_one=64 * MIB,
    reason="a fast producer sends as much in the time that a file takes",
)
NEW_TOPIC_WAITS = Limit(
    "requests that wait until their topic is on disk",
    ("broker",),
    items=200_000,
    size=128 * MIB,
    items_of_one=50_000,
    size_of_one=32 * MIB,
    reason="a fast producer sends as much in the time that a write takes",
)
REPLIES = Limit(
    "replies that are pushed to requesters",
    ("broker",),
    items=4096,
    size=64 * MIB,
    items_of_one=1024,
    size_of_one=16 * MIB,
    reason="16 replies of the largest size",
)
CLIENT_REQUESTS = Limit(
    "requests that the broker relays to clients",
    ("broker",),
    items=64,
    size=32 * MIB,
    items_of_one=16,
    size_of_one=8 * MIB,
    reason="administrators send a few at a time",
)

#: Handshakes of TLS that are not complete, and incomplete frames of HTTP/2, bytes (`remoting/incomplete_input.py`). A
#: handshake counts as 128 KiB: 512 clients can connect at the same moment.
INCOMPLETE_INPUTS_BYTES = 64 * MIB
#: Incomplete frames of all connections, bytes (`remoting/incomplete_frames.py`): three of the largest frames, or twelve
#: of a broker's largest messages, arrive at a time.
INCOMPLETE_FRAMES_BYTES = 64 * MIB
#: Responses that peers do not read, bytes (`remoting/unread_responses.py`): a hundred slow consumers have less. The
#: server closes connections before twice this amount.
UNREAD_RESPONSES_BYTES = 100 * MIB
#: Requests of connections that wait for their time slice, bytes (`remoting/time_slices.py`). A read has at most
#: 256 KiB.
WAITING_READS_BYTES = 64 * MIB
#: Groups, members and subscriptions from heartbeats, bytes (`broker/tables/heartbeat_quota.py`): 200,000 members.
HEARTBEATS_BYTES = 96 * MIB
#: Texts of the compiled filters that requests in flight use, characters (`filter/filter_cache.py`). A compiled filter
#: takes about 12 bytes a character.
FILTER_CHARACTERS = 2 * MIB
_BYTES_OF_FILTER_CHARACTER = 12
#: There is a cache for SQL92 and one for tags.
_FILTER_CACHES = 2
#: Characters of the expressions of all groups that the broker keeps (`broker/tables/consumer_filters.py`).
CONSUMER_FILTER_CHARACTERS = 16 * MIB
#: Pulls that wait for messages (`broker/pull/`), of all peers and of one connection. A consumer has one for each of its
#: queues. A waiting pull takes about 1 KiB.
WAITING_PULLS = 100_000
WAITING_PULLS_OF_ONE = 10_000
#: Pops that wait for messages (`broker/pop/`), of all peers. A waiting pop takes about 1 KiB.
WAITING_POPS = 100_000
_BYTES_OF_PULL = 1024
#: Client hosts whose rates are limited (`broker/tables/rate_limits.py`). There is a table for sends and one for
#: deliveries. If a table is full, further hosts share one limit.
RATE_LIMITED_HOSTS = 10_000
_RATE_LIMIT_TABLES = 2
_BYTES_OF_RATE_LIMIT = 512

#: Deduplication ids of all topics (`broker/send/deduplication.py`): 500 messages a second with a window of 1,000 s. At
#: the limit, the broker refuses messages with new ids.
DEDUPLICATION_IDS = 500_000
_BYTES_OF_DEDUPLICATION_ID = 350

#: Reads of the tier that wait or run (`tier/tier.py`). Further ones are refused. A read has the messages of one
#: response, and blocks of the tier.
TIER_READS = 64
_BYTES_OF_TIER_READ = 2 * MIB
#: Headers of sends that native code caches, bytes (`broker/send/fast_path.py`): 50,000 topics with one producer group.
#: The oldest headers are dropped.
SEND_HEADERS_BYTES = 32 * MIB
#: The same limit for the headers with another timeout of the client than the default. They are cached separately.
SEND_HEADERS_BYTES_OF_TIMEOUT = 8 * MIB
SEND_TIMEOUTS = 3
#: Light queues that a message names (`protocol/multi_dispatch.py`). The first use of one takes about 54 us. Java has no
#: limit.
LIGHT_QUEUES_OF_MESSAGE = 200
#: Offsets of light groups in light queues, as JSON, bytes (`broker/tables/consumer_offsets.py`): 100,000 offsets if the
#: names of queue and group have 60 bytes together. Slaves copy them with all other offsets in one frame of at most
#: 16 MiB. An offset takes about 250 bytes of memory, in addition to the sum below: brokers have no light queues by
#: default.
LIGHT_OFFSETS_BYTES = 8 * MIB

#: Subscriptions of all clients to lite topics, the default of `maxLiteSubscriptionCount` (`broker/lite/`). One takes
#: about 1.5 KiB of memory with its light queue, in addition to the sum below: brokers have no light queues by default.
LITE_SUBSCRIPTIONS = 100_000

# -- the proxy's gRPC port ------------------------------------------------------------------------------------------

#: Requests that handlers process, bytes (`proxy/request_memory.py`). A body is copied two or three times before it
#: reaches a broker. Requests of at most PROXY_SMALL_REQUEST_BYTES are accepted up to twice this amount.
PROXY_REQUESTS_BYTES = 32 * MIB
#: The same limit for one connection, while other connections have requests in flight.
PROXY_REQUESTS_BYTES_OF_ONE = PROXY_REQUESTS_BYTES // 4
PROXY_SMALL_REQUEST_BYTES = 8 * 1024
#: Messages of clients that are longer than the first window of a stream (`proxy/incomplete_messages.py`). A message
#: above the limit is accepted if there is no other.
PROXY_LONG_MESSAGES_BYTES = 64 * MIB
#: The same limit, including the first windows of all streams.
PROXY_INCOMPLETE_MESSAGES_BYTES = PROXY_LONG_MESSAGES_BYTES + 32 * MIB
#: Responses that clients do not read (`proxy/http2/unread_responses.py`). Honest clients read within milliseconds.
PROXY_UNREAD_RESPONSES_BYTES = 32 * MIB
#: Settings of clients and the topics in them (`proxy/clients.py`). Each heartbeat processes the topics. Clients with
#: small settings are accepted up to twice these limits.
PROXY_SETTINGS_BYTES = 64 * MIB
PROXY_TOPICS_OF_SETTINGS = 100_000
#: Encoded responses with routes (`proxy/response_cache.py`).
PROXY_CACHED_RESPONSES_BYTES = 8 * MIB
#: Messages whose invisible durations are renewed (`proxy/consumer/in_flight_messages.py`). Others are redelivered when
#: their invisible duration ends.
PROXY_IN_FLIGHT_MESSAGES = 500_000
_BYTES_OF_IN_FLIGHT_MESSAGE = 500
#: Open transactions (`proxy/producer/transactions.py`). A check of the broker caches an older transaction again.
PROXY_TRANSACTIONS = 100_000
_BYTES_OF_TRANSACTION = 700
#: Pops whose clients have disconnected (`proxy/consumer/receive_message.py`).
PROXY_ABANDONED_POPS = 10_000
_BYTES_OF_ABANDONED_POP = 4096
#: Requests of brokers that clients have not answered (`proxy/telemetry_requests.py`). Operators cause them.
PROXY_TELEMETRY_REQUESTS = 1000
#: Lines of the access log that are not written yet (`proxy/access_log.py`).
PROXY_LOG_LINES = 100_000
_BYTES_OF_LOG_LINE = 500

LIMITS = (RESPONSE_TASKS, LONG_REQUESTS, PREALLOCATION_WAITS, NEW_TOPIC_WAITS, REPLIES, CLIENT_REQUESTS)


def memory_of(server: str) -> int:
    """Returns the sum of the limits of a server ("broker", "NameServer", "controller" or "proxy"), in bytes."""
    size = INCOMPLETE_INPUTS_BYTES + INCOMPLETE_FRAMES_BYTES + 2 * UNREAD_RESPONSES_BYTES + WAITING_READS_BYTES
    size += sum(limit.size for limit in LIMITS if server in limit.servers)
    if server == "broker":
        size += HEARTBEATS_BYTES + CONSUMER_FILTER_CHARACTERS
        size += _FILTER_CACHES * FILTER_CHARACTERS * _BYTES_OF_FILTER_CHARACTER
        size += (WAITING_PULLS + WAITING_POPS) * _BYTES_OF_PULL
        size += _RATE_LIMIT_TABLES * RATE_LIMITED_HOSTS * _BYTES_OF_RATE_LIMIT
        size += DEDUPLICATION_IDS * _BYTES_OF_DEDUPLICATION_ID
        size += TIER_READS * _BYTES_OF_TIER_READ
        size += SEND_HEADERS_BYTES + SEND_TIMEOUTS * SEND_HEADERS_BYTES_OF_TIMEOUT
    if server == "proxy":
        # The gRPC port.
        size += INCOMPLETE_INPUTS_BYTES + PROXY_INCOMPLETE_MESSAGES_BYTES + PROXY_UNREAD_RESPONSES_BYTES
        size += 2 * (PROXY_REQUESTS_BYTES + PROXY_SETTINGS_BYTES) + PROXY_CACHED_RESPONSES_BYTES
        size += PROXY_IN_FLIGHT_MESSAGES * _BYTES_OF_IN_FLIGHT_MESSAGE + PROXY_TRANSACTIONS * _BYTES_OF_TRANSACTION
        size += PROXY_ABANDONED_POPS * _BYTES_OF_ABANDONED_POP + PROXY_LOG_LINES * _BYTES_OF_LOG_LINE
    return size
