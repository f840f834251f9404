"""Features: builds the features of a broker, and lists them in their start order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.broker.acting import ActingMaster, EscapeBridge, HaInfo, PreOnline
from gantrymq.broker.admin import (
    AuthAdmin,
    BrokerConfigAdmin,
    ClientRelay,
    Connections,
    ConsumeProgress,
    GroupAdmin,
    MessageAdmin,
    OffsetAdmin,
    RuntimeInfo,
    StoreAdmin,
    TopicAdmin,
    TopicStats,
)
from gantrymq.broker.append import (
    Appender,
    NewTopics,
    PendingResponses,
    PreallocationWaits,
    ReceivedMessages,
    RequestWaits,
)
from gantrymq.broker.compaction import Compaction
from gantrymq.broker.consumers import Assignments, Heartbeats, LockRequests, QueueOffsets, SlowConsumers
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.delay import DelayLevels, Delays, Recall, Timer
from gantrymq.broker.feature import Feature
from gantrymq.broker.index_builder import IndexBuilder
from gantrymq.broker.light_queue_commits import LightQueueCommits
from gantrymq.broker.name_server_lookup import NameServerLookup
from gantrymq.broker.pop import PopService
from gantrymq.broker.pull import PullProcessor
from gantrymq.broker.registration import Registration
from gantrymq.broker.replication import HaAccess, Replication
from gantrymq.broker.role_changes import RoleChanges
from gantrymq.broker.role_requests import RoleRequests
from gantrymq.broker.send import Deduplication, IdempotentWrites, Replies, RetryTopics, SendProcessor, StoredIds
from gantrymq.broker.slave import MetadataSync
from gantrymq.broker.transaction import Transactions
from gantrymq.remoting.connection import RequestHandler
from gantrymq.remoting.server import RemotingServer
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.store.delay_level import parse_delay_levels

if TYPE_CHECKING:
    from gantrymq.broker.controller import ReplicasManager
    from gantrymq.broker.lite import LiteTopics


class Features:
    """The features of one broker. The modules of a feature that is off are not imported: a broker starts sooner.

    Attributes:
        all: Every feature, in the order in which they start. They stop in the opposite order.
        acting_features: The features that an acting master needs.
        replicas_manager: None without controller mode.
        lite: None without light queues.
    """

    def __init__(self, context: BrokerContext, server: RemotingServer, handlers: dict[int, RequestHandler]) -> None:
        config, store, jobs = context.config, context.store, context.jobs

        epochs = EpochFile(config.store.store_path_root_dir) if config.enable_controller_mode else None
        ha_access = HaAccess(config, context.access.users)
        self.replication = replication = Replication(context, access=ha_access, epochs=epochs)
        self.registration = registration = Registration(context, replication=replication)

        self.pulling = pulling = PullProcessor(context, replication=replication)
        self.appender = appender = Appender(
            store,
            context.store_host,
            pulling.polling,
            is_of_deleted=context.offsets.is_of_deleted,
            received=ReceivedMessages() if config.has_metrics else None,
        )

        # Storing and delaying messages.
        self.waits = waits = RequestWaits(
            PreallocationWaits(store, jobs),
            NewTopics(context.topics, jobs),
            PendingResponses(context, replication=replication),
        )
        delays_ms = parse_delay_levels(config.store.message_delay_level)
        delay_file = config.store.config_directory / "delayOffset.json"
        self.schedule = schedule = DelayLevels(delay_file, delays_ms, appender, jobs, persistence=context.persistence)
        self.timer = timer = Timer(config.store, appender, jobs)
        context.events.topics_deleted.subscribe(lambda names, queues: timer.topics_deleted(names))
        delays = Delays(schedule, timer)
        retry = RetryTopics(context, appender=appender, schedule=schedule, waits=waits)
        self.writers = writers = IdempotentWrites(context, appender=appender)
        self.deduplication = deduplication = Deduplication(context, appender=appender)
        stored_ids = StoredIds(writers, deduplication)
        self.sending = SendProcessor(
            context, appender=appender, delays=delays, retry=retry, waits=waits, stored_ids=stored_ids
        )
        self.transactions = transactions = Transactions(context, appender=appender, delays=delays, waits=waits)
        self.pops = pops = PopService(
            context,
            appender=appender,
            polling=pulling.polling,
            retry=retry,
            timer=timer,
            preallocation_waits=waits.files,
        )
        self.lite: LiteTopics | None = None
        if store.light is not None:
            from gantrymq.broker.lite import LiteTopics

            self.lite = LiteTopics(context, light=store.light, polling=pulling.polling, pops=pops)

        # Roles.
        self.escape_bridge = escape_bridge = EscapeBridge(
            config, context.remoting, {pops.revive_topic: pops.revive_now}
        )
        self.role_changes = role_changes = RoleChanges(
            context, handlers, replication=replication, appender=appender, escape_bridge=escape_bridge
        )
        self.acting = acting = ActingMaster(
            context, replication=replication, pending_responses=waits.flush, role_changes=role_changes
        )
        self.replicas_manager: ReplicasManager | None = None
        if config.enable_controller_mode:
            from gantrymq.broker.controller import ReplicasManager

            self.replicas_manager = ReplicasManager(
                context,
                replication=replication,
                appender=appender,
                pending_responses=waits.flush,
                registration=registration,
                role_changes=role_changes,
            )
        self.metadata_sync = metadata_sync = MetadataSync(
            context, replication=replication, schedule=schedule, timer=timer
        )

        self.runtime = runtime = RuntimeInfo(context, appender=appender, schedule=schedule, timer=timer)
        relay = ClientRelay(context)
        tiered_storage: list[Feature] = []
        if context.tier is not None:
            from gantrymq.broker.tiered_storage import TieredStorage

            tiered_storage = [TieredStorage(context, tier=context.tier)]
        self.acting_features: list[Feature] = [metadata_sync, transactions, timer, schedule, pops]
        self.all: list[Feature] = [
            *context.tables,
            # Must precede the features that send requests to NameServers.
            NameServerLookup(context),
            runtime,
            IndexBuilder(store, jobs),
            *([LightQueueCommits(store.light, jobs)] if store.light is not None else []),
            StoreAdmin(context),
            Compaction(context, replication=replication),
            *tiered_storage,
            # The features below write to the log when they stop. Replication stops after them, so that slaves receive
            # these records.
            *([self.replicas_manager] if self.replicas_manager is not None else []),
            RoleRequests(context, replicas_manager=self.replicas_manager),
            replication,
            PreOnline(context, replication=replication, schedule=schedule, timer=timer),
            metadata_sync,
            transactions,
            timer,
            schedule,
            writers,
            deduplication,
            LockRequests(context),
            acting,
            HaInfo(context, replication=replication, acting=acting),
            # The server accepts requests from here on. The features below can still send responses when they stop.
            ServerFeature(context, server=server, sending=self.sending),
            waits.flush,
            waits.new_topics,
            waits.files,
            LongRequestsFeature(context),
            Assignments(context),
            pops,
            self.lite if self.lite is not None else pops.acks,
            pulling.polling,
            pulling,
            self.sending,
            retry,
            Recall(context, appender=appender, timer=timer, waits=waits),
            Replies(context, appender=appender, pending_responses=waits.flush),
            Heartbeats(context, pulling=pulling, metadata_sync=metadata_sync),
            QueueOffsets(context),
            SlowConsumers(context),
            TopicAdmin(context),
            TopicStats(context, runtime=runtime),
            GroupAdmin(context),
            ConsumeProgress(context, runtime=runtime),
            OffsetAdmin(context, schedule=schedule, relay=relay),
            Connections(context),
            MessageAdmin(context),
            BrokerConfigAdmin(context),
            AuthAdmin(context),
            relay,
        ]
        if config.has_metrics:
            from gantrymq.broker.metrics import BrokerMetrics

            self.all.append(
                BrokerMetrics(
                    context,
                    appender=appender,
                    runtime=runtime,
                    delays=delays,
                    deduplication=deduplication,
                    transactions=transactions,
                    pops=pops,
                    replication=replication,
                    acting=acting,
                    loop_watch=server.loop_watch,
                )
            )
        # Registration is last: clients must not find a broker that can't start.
        self.all += [DrainFeature(server), registration]


class ServerFeature(Feature):
    """Accepts connections from `start` on. `stop` closes them after their responses are written."""

    def __init__(self, context: BrokerContext, *, server: RemotingServer, sending: SendProcessor) -> None:
        self._access = context.access
        self._server = server
        self._sending = sending

    async def start(self) -> None:
        # With access control, the handlers of sends check each request.
        await self._server.serve(None if self._access.is_on else self._sending.first_look)

    async def stop(self) -> None:
        await self._server.stop()


class DrainFeature(Feature):
    """On `stop`, answers the requests that have arrived so far, while all other features still run."""

    def __init__(self, server: RemotingServer) -> None:
        self._server = server

    async def stop(self) -> None:
        await self._server.drain()


class LongRequestsFeature(Feature):
    """Runs requests that take more than one iteration of the event loop, and answers them before connections close."""

    def __init__(self, context: BrokerContext) -> None:
        self._long_requests = context.long_requests
        context.events.connection_closed.subscribe(self._long_requests.connection_closed)

    async def start(self) -> None:
        self._long_requests.start()

    async def stop(self) -> None:
        await self._long_requests.stop()
