"""BrokerContext: the objects that the features of a broker share."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig, BrokerRole
from gantrymq.broker.credentials import inner_client_hooks
from gantrymq.broker.events import BrokerEvents
from gantrymq.broker.feature import Feature
from gantrymq.broker.log_flushed import log_flushed
from gantrymq.broker.tables import (
    OFFSETS_FILE,
    AccessControl,
    BrokerStats,
    BrokerTopics,
    ConsumerFilters,
    ConsumerOffsets,
    Deliveries,
    GroupMembers,
    MessageFilters,
    MessageRequestModes,
    RateLimits,
    SubscriptionGroupTable,
    TablePersistence,
)
from gantrymq.errors import RequestRefused
from gantrymq.protocol.record import encode_host
from gantrymq.remoting.address import format_address
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.remoting.tls import client_context
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore

if TYPE_CHECKING:
    from gantrymq.tier.tier import Tier


class BrokerContext:
    """The configuration, the store, the tables and the event loop's helpers of one broker.

    Attributes:
        address: host:port at which clients and other brokers reach this broker.
        port: The port that the broker listens on.
        store_host: The address, encoded as in a record of the log.
        remoting: The client for requests to other brokers and to NameServers.
        tier: None without tiered storage.
        long_requests: Runs requests that take more than one iteration of the event loop.
    """

    def __init__(self, config: BrokerConfig, jobs: Jobs, events: BrokerEvents, port: int) -> None:
        directory = config.store.config_directory
        self.config = config
        self.jobs = jobs
        self.events = events
        self.port = port
        self.address = format_address(config.broker_ip1, port)
        self.store_host = encode_host(config.resolved_ip(), port)
        self.tier: Tier | None = None
        if config.store.tiered_store_file_path:
            from gantrymq.tier.objects import open_objects
            from gantrymq.tier.tier import Tier

            address = config.store.tiered_store_file_path
            self.tier = Tier(open_objects(address, config.broker_cluster_name, config.broker_name))
        self.store = MessageStore(
            config.store,
            self.store_host,
            jobs=jobs,
            waits=False,
            # The topics need the store for their files, so the store gets them later.
            topic_limits=lambda topic: self.topics.retention_limits(topic),
            compaction_topics=lambda: self.topics.compacted,
            lower_tier=self.tier,
        )
        self.remoting = RemotingClient(ssl_context=client_context(config), hooks=inner_client_hooks(config.auth))
        self.long_requests = LongRequests(jobs)
        self.persistence = persistence = TablePersistence(config, jobs, log_flushed=partial(log_flushed, self.store))
        self.topics = BrokerTopics(
            config, directory / "topics.json", events.topics_changed.publish, persistence=persistence
        )
        self.groups = SubscriptionGroupTable(config, directory / "subscriptionGroup.json", persistence=persistence)
        self.offsets = ConsumerOffsets(directory / OFFSETS_FILE, persistence=persistence, light_queues=self.store.light)
        self.consumer_filters = ConsumerFilters(directory / "consumerFilter.json", persistence=persistence)
        self.request_modes = MessageRequestModes(
            config, directory / "messageRequestMode.json", self.topics, self.groups, persistence=persistence
        )
        self.access = AccessControl(config, self.store, jobs, persistence=persistence)
        self.members: GroupMembers[Connection] = GroupMembers(self.access.is_same_user)
        self.filters = MessageFilters(config, self.members, self.consumer_filters)
        self.deliveries = Deliveries()
        self.stats = BrokerStats(has_light_queues=config.store.enable_lmq)
        self.rate_limits = RateLimits(config)
        events.config_changed.subscribe(self.store.config_changed)
        events.config_changed.subscribe(self.topics.config_changed)
        events.config_changed.subscribe(self.rate_limits.config_changed)
        events.topics_deleted.subscribe(lambda names, queues: self.deliveries.topics_deleted(names))
        events.topics_deleted.subscribe(lambda names, queues: self.rate_limits.topics_deleted(names))
        events.group_deleted.subscribe(self.rate_limits.group_deleted)
        events.offsets_reset.subscribe(self.deliveries.forget_positions)

    @property
    def tables(self) -> list[Feature]:
        """The tables with files, in the order in which they are loaded."""
        return [
            self.persistence,
            self.topics,
            self.groups,
            self.offsets,
            self.consumer_filters,
            self.access,
            self.request_modes,
        ]

    @property
    def is_slave(self) -> bool:
        return self.config.broker_role is BrokerRole.SLAVE

    def min_offset(self, queue: ConsumeQueue) -> int:
        """Returns the offset of the oldest message that consumers can pull, in the log or in the tier.

        While the tier is unknown, only messages in the log count.
        """
        if self.tier is None:
            return queue.min_offset
        with suppress(RequestRefused):
            return self.tier.min_offset(queue)
        return queue.min_offset
