"""QueuePuller: pulls one queue by long polling, as long as its ProcessQueue has room.

Source: client/impl/consumer/DefaultMQPushConsumerImpl (pullMessage), PullAPIWrapper (processPullResult).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from gantrymq.background.repeating import Repeating
from gantrymq.client.broker_api import PullResult, PullStatus
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.process_queue import ProcessQueue
from gantrymq.client.consuming.short_polls import ShortPolls
from gantrymq.client.pulled_messages import Unreadable, decode_pulled
from gantrymq.errors import BrokerError, ClientClosed, ConnectFailed, GantryError, HeaderError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_TAG, SubscriptionData
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.system import clock

log = peer_log(__name__)

#: BROKER_SUSPEND_MAX_TIME_MILLIS: how long the broker waits for a message to come.
SUSPEND_MS = 15_000
#: CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND: how long the consumer waits for the broker.
TIMEOUT_MS = 30_000
#: pullBatchSize. Java's consumers ask for 32 and 10: its broker gives at most 32, whoever asks for more. This project's
#: gives all to bulk readers: with 256 consumers read nearly twice as fast as with 32, with 1024 no faster.
PULL_BATCH_SIZE = 256
#: Bytes of records that a pull takes as a bulk reader; the broker may give fewer.
PULL_BATCH_BYTES = 4 * 1024 * 1024
#: The pause after a failed pull; after FLOW_CONTROL PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL.
RETRY_DELAY_S = 1.0
#: A record that can't be read is pulled so often.
TRIES = 3
FLOW_CONTROL_DELAY_S = 0.02

#: Takes the pulled messages of a queue, which its ProcessQueue already holds.
Sink = Callable[[ProcessQueue, list[MessageExt]], None]
#: Told that a queue goes on at another offset: the puller pulls no more and waits to be stopped.
Moved = Callable[[ProcessQueue, int], None]


class QueuePuller:
    """Pulls `process_queue` and hands the messages to `sink`.

    While `commits` says so each pull also commits the ProcessQueue's offset; with `lite` the subscription goes with
    each pull, so that the broker need not know the group.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        process_queue: ProcessQueue,
        subscription: SubscriptionData,
        sink: Sink,
        moved: Moved,
        *,
        batch_size: int,
        max_body_size: int,
        commits: Callable[[], bool],
        lite: bool,
    ) -> None:
        self._client = client
        self._group = group
        self._process_queue = process_queue
        self._subscription = subscription
        self._sink = sink
        self._moved = moved
        self._batch_size = batch_size
        self._max_body_size = max_body_size
        #: The last record that couldn't be read, and how often.
        self._unreadable_offset = -1
        self._tries = 0
        self._short_polls = ShortPolls()
        self._commits = commits
        self._lite = lite
        self._tags = set(subscription.tags_set) if subscription.expression_type == EXPRESSION_TAG else set()
        self._broker_id = MASTER_ID
        #: The topic may have been deleted and created again since the last pull: the next one is answered at once, and
        #: commits no offset of the old topic.
        self._is_unsure = False
        # Whatever a pull raises, there is another.
        self._job = Repeating(f"pulling {process_queue.queue}", self._next, after_error_s=RETRY_DELAY_S)
        self._job.start(0.0)

    async def stop(self) -> None:
        """Gives up the pull under way."""
        await self._job.stop()

    async def _next(self) -> float:
        """One pull; how long to wait until the next, s."""
        process_queue = self._process_queue
        if process_queue.is_full:
            process_queue.on_room = self._job.wake
            return inf
        try:
            return await self._pull()
        except ClientClosed:
            return inf
        except GantryError as e:
            return await self._recover(e)

    async def _pull(self) -> float:
        process_queue = self._process_queue
        address, header = self._request()
        process_queue.last_pull = started = clock.time()
        result = await self._client.api.pull(address, header, TIMEOUT_MS)
        self._client.troubles.over(address)
        process_queue.last_error = None
        # So a broker answers held pulls of a queue that is deleted.
        self._is_unsure = (
            result.status is PullStatus.NO_MATCHED_MESSAGE and result.next_begin_offset == process_queue.next_offset
        )
        if self._is_created_again(result):
            log.warning("the topic of %s was deleted and created again: going on at its begin", process_queue.queue)
            self._moved(process_queue, result.min_offset)
            return inf
        self._refuse_nonsense(result)
        self._broker_id = result.suggest_which_broker_id
        process_queue.max_offset = result.max_offset
        match result.status:
            case PullStatus.FOUND:
                return self._found(result, started)
            case PullStatus.OFFSET_ILLEGAL:
                log.warning(
                    "offset %d of %s is not there (%d to %d are): going on at %d",
                    process_queue.next_offset,
                    process_queue.queue,
                    result.min_offset,
                    result.max_offset,
                    result.next_begin_offset,
                )
                following = result.next_begin_offset
                if following == process_queue.next_offset:
                    return RETRY_DELAY_S
                if process_queue.next_offset > result.max_offset:
                    # The queue has lost its end: what was pulled before and isn't dealt with may still be there.
                    following = min(following, process_queue.commit_offset)
                # Not in this process queue, whose messages are in the order of their offsets.
                self._moved(process_queue, following)
                return inf
            case _:
                offset, process_queue.next_offset = process_queue.next_offset, result.next_begin_offset
                return self._short_polls.pause(result.next_begin_offset > offset, clock.time() - started)

    def _is_created_again(self, result: PullResult) -> bool:
        """Whether the topic was deleted and created again since the first pull, so that offsets have another meaning.

        A broker that has become master since may not have copied that a topic was deleted long ago.
        """
        process_queue, begin = self._process_queue, result.topic_begin
        is_created_again = process_queue.topic_begin is not None and begin > process_queue.topic_begin
        process_queue.topic_begin = max(begin, process_queue.topic_begin or 0)
        return is_created_again

    def _refuse_nonsense(self, result: PullResult) -> None:
        """Raises HeaderError for an answer that would be committed, and is none: it is asked for again."""
        offset, following = self._process_queue.next_offset, result.next_begin_offset
        least = 0 if result.status is PullStatus.OFFSET_ILLEGAL else offset
        if not least <= following <= max(offset, result.max_offset):
            raise HeaderError(
                f"the answer to a pull of offset {offset} says to go on at {following}, the queue ends at "
                f"{result.max_offset}"
            )

    def _found(self, result: PullResult, started: float) -> float:
        process_queue, tags, offset = self._process_queue, self._tags, self._process_queue.next_offset
        messages, rest = decode_pulled(result.body, process_queue.queue, offset, self._max_body_size, self._in_place_of)
        following = result.next_begin_offset if rest is None else rest
        if rest is None and following <= (messages[-1].queue_offset if messages else offset):
            raise HeaderError(f"what a pull of offset {offset} found is followed by offset {following}")
        self._short_polls.pause(True, 0.0)
        if tags:
            # The broker compares hash codes only: other tags may have the same one.
            messages = [message for message in messages if message.tags in tags or message.is_damaged]
        process_queue.next_offset = following
        process_queue.put(messages)
        counters = process_queue.counters
        counters.pulls += 1
        counters.pull_s += clock.time() - started
        counters.pulled += len(messages)
        if messages:
            self._sink(process_queue, messages)
        return 0.0 if following > offset else RETRY_DELAY_S

    def _in_place_of(self, unreadable: Unreadable) -> MessageExt | None:
        """A record that can't be read is pulled again, it may be the connection's fault; at last it is handed on so."""
        offset = unreadable.queue_offset
        if offset != self._unreadable_offset:
            self._unreadable_offset, self._tries = offset, 0
        self._tries += 1
        place = f"offset {offset} of {self._process_queue.queue}"
        if self._tries < TRIES:
            log.warning("the record at %s can't be read, pulling it again: %s", place, unreadable.error)
            return None
        log.error("the record at %s can't be read, it is handed on without its body: %s", place, unreadable.error)
        return unreadable.stand_in(self._process_queue.queue)

    def _request(self) -> tuple[str, PullMessageRequestHeader]:
        process_queue, subscription, routes = self._process_queue, self._subscription, self._client.routes
        topic, broker_name, queue_id = process_queue.queue
        address = routes.broker_address(broker_name, self._broker_id)
        if address is None:
            raise ConnectFailed(f"no route names broker {broker_name}", broker_name)
        sys_flag = 0 if self._is_unsure else PULL_SUSPEND
        commit_offset = 0
        if self._lite:
            sys_flag |= PULL_LITE | PULL_SUBSCRIPTION
        if not self._is_unsure and self._commits() and address == routes.master_address(broker_name):
            commit_offset = process_queue.commit_offset
            if commit_offset > 0:
                sys_flag |= PULL_COMMIT_OFFSET
        return address, PullMessageRequestHeader(
            consumer_group=self._group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=process_queue.next_offset,
            max_msg_nums=self._batch_size,
            bulk_msg_nums=self._batch_size,
            bulk_msg_bytes=PULL_BATCH_BYTES,
            sys_flag=sys_flag,
            commit_offset=commit_offset,
            suspend_timeout_millis=SUSPEND_MS,
            sub_version=subscription.sub_version,
            subscription=subscription.sub_string if self._lite else None,
            expression_type=subscription.expression_type,
            bname=broker_name,
        )

    async def _recover(self, error: GantryError) -> float:
        """What to do about a failed pull; returns how long to wait then, in seconds."""
        queue = self._process_queue.queue
        self._process_queue.last_error = error
        self._is_unsure = True
        self._client.troubles.tell(f"can't pull {queue} for group {self._group}", error)
        if isinstance(error, BrokerError):
            if error.code == ResponseCode.FLOW_CONTROL:
                return FLOW_CONTROL_DELAY_S
            if error.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
                await self._client.greet_again(error.address)
            # A slave may not let itself be read.
            self._broker_id = MASTER_ID
        else:
            # Another replica may be there; one that is a slave sends back to the master once that is.
            self._broker_id = self._client.routes.next_replica(queue.broker_name, self._broker_id)
        return await self._client.recover(queue.topic, queue.broker_name, error, RETRY_DELAY_S)
