"""QueuePuller: pulls one queue by long polling until its ProcessQueue is full.

Source: client/impl/consumer/DefaultMQPushConsumerImpl (pullMessage), PullAPIWrapper (processPullResult).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from gantrymq.background.repeating import Repeating
from gantrymq.client.broker_api import PullResult, PullStatus
from gantrymq.client.consuming.consumer_context import ConsumerContext
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

#: Longest time that the broker waits for a message (BROKER_SUSPEND_MAX_TIME_MILLIS), ms.
SUSPEND_MS = 15_000
#: Timeout of a pull (CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND), ms.
TIMEOUT_MS = 30_000
#: Largest size of the records of a bulk pull, in bytes. The broker may send less.
PULL_BATCH_BYTES = 4 * 1024 * 1024
#: Pause after a failed pull, s. After FLOW_CONTROL it is FLOW_CONTROL_DELAY_S
#: (PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL).
RETRY_DELAY_S = 1.0
#: Longest pause of a pull above a rate limit, in seconds. A limit that an administrator raises has an effect after it.
_MAX_LIMITED_PAUSE_S = 10.0
#: How often an unreadable record is pulled.
TRIES = 3
FLOW_CONTROL_DELAY_S = 0.02

#: Receives the pulled messages of a queue. Its ProcessQueue already contains them.
Sink = Callable[[ProcessQueue, list[MessageExt]], None]
#: Called if a queue continues at another offset. The puller then makes no further pulls.
Moved = Callable[[ProcessQueue, int], None]


class QueuePuller:
    """Pulls `process_queue` and passes the messages to `sink`.

    If `commits` returns true, each pull also commits the offset of the ProcessQueue. With `lite`, each pull contains
    the subscription, because the broker may not have the group.
    """

    def __init__(
        self,
        context: ConsumerContext,
        process_queue: ProcessQueue,
        subscription: SubscriptionData,
        sink: Sink,
        moved: Moved,
        *,
        commits: Callable[[], bool],
        lite: bool,
    ) -> None:
        options = context.options
        self._client = context.client
        self._group = context.group
        self._process_queue = process_queue
        self._subscription = subscription
        self._sink = sink
        self._moved = moved
        # A larger pull could far exceed the limit.
        self._batch_size = min(options.pull_batch_size, options.limits().max_messages)
        self._max_body_size = options.max_body_size
        #: Offset of the last unreadable record, and below the number of pulls of this record.
        self._unreadable_offset = -1
        self._tries = 0
        self._short_polls = ShortPolls()
        self._commits = commits
        self._lite = lite
        self._tags = set(subscription.tags_set) if subscription.expression_type == EXPRESSION_TAG else set()
        self._broker_id = MASTER_ID
        #: True if the topic may have been recreated since the last pull. The next pull then does not wait for messages,
        #: and commits no offset of the old topic.
        self._is_unsure = False
        # The job repeats pulls after any error.
        self._job = Repeating(f"pulling {process_queue.queue}", self._next, after_error_s=RETRY_DELAY_S)
        self._job.start(0.0)

    async def stop(self) -> None:
        """Cancels the pull in flight."""
        await self._job.stop()

    async def _next(self) -> float:
        """Makes one pull. Returns the pause before the next one, in seconds."""
        process_queue = self._process_queue
        if process_queue.is_full:
            process_queue.when_not_full(self._job.wake)
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
        self._client.failure_log.recovered(address)
        process_queue.pull_ended(None)
        # A broker also sends this response to pending pulls when it deletes the queue.
        self._is_unsure = (
            result.status is PullStatus.NO_MATCHED_MESSAGE and result.next_begin_offset == process_queue.next_offset
        )
        if self._is_created_again(result):
            log.warning("the topic of %s was deleted and created again: going on at its begin", process_queue.queue)
            self._moved(process_queue, await self._first_offset(address))
            process_queue.topic_begin = result.topic_begin
            return inf
        process_queue.topic_begin = max(result.topic_begin, process_queue.topic_begin or 0)
        if self._has_lost_its_end(result):
            log.warning(
                "%s has lost messages in a crash of its broker: going on at offset %d, where it was recovered",
                process_queue.queue,
                result.recovered_end,
            )
            # Pulled messages before this offset that are not handled yet still exist.
            self._moved(process_queue, min(result.recovered_end, process_queue.commit_offset))
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
                    # The broker has lost the end of the queue. Pulled messages that are not handled yet may still
                    # exist.
                    following = min(following, process_queue.commit_offset)
                # Needs a new process queue, because the offsets of the messages in a process queue must ascend.
                self._moved(process_queue, following)
                return inf
            case _:
                offset, process_queue.next_offset = process_queue.next_offset, result.next_begin_offset
                return self._short_polls.pause(result.next_begin_offset > offset, clock.time() - started)

    def _is_created_again(self, result: PullResult) -> bool:
        """Returns whether the topic was recreated since the first pull, so that old offsets are invalid.

        A new master may lack the deletion of a topic, even if the deletion was long ago.
        """
        topic_begin = self._process_queue.topic_begin
        return topic_begin is not None and result.topic_begin > topic_begin

    async def _first_offset(self, address: str) -> int:
        """Returns the first offset of the queue. Responses to pulls do not include the broker's tier."""
        topic, broker_name, queue_id = self._process_queue.queue
        offset = await self._client.api.min_offset(address, topic, queue_id, broker_name=broker_name)
        if offset < 0:
            raise HeaderError(f"the broker says that {self._process_queue.queue} begins at offset {offset}")
        return offset

    def _has_lost_its_end(self, result: PullResult) -> bool:
        """Returns whether a crash of the broker lost messages that were pulled, so that their offsets are reused."""
        process_queue, recovery = self._process_queue, result.recovery
        if result.recovered_end < 0:
            raise HeaderError(f"the answer to a pull says that its queue was recovered up to {result.recovered_end}")
        has_crashed = recovery != 0 and process_queue.recovery not in (None, recovery)
        process_queue.recovery = recovery or process_queue.recovery or 0
        return has_crashed and process_queue.next_offset > result.recovered_end

    def _refuse_nonsense(self, result: PullResult) -> None:
        """Raises HeaderError if the next offset of a response is out of range. The pull is repeated."""
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
            # The broker compares hash codes of tags, and different tags can have the same hash code.
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
        """Returns a message without its body for an unreadable record, but only after TRIES pulls.

        Before that, returns None to pull the record again, because the connection may have corrupted it.
        """
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
        """Handles a failed pull. Returns the pause before the next one, in seconds."""
        queue = self._process_queue.queue
        if isinstance(error, BrokerError) and error.retry_after_ms is not None:
            # The rate limit of the group or of this host is exceeded for a long time. The broker works.
            self._process_queue.pull_ended(None)
            return min(error.retry_after_ms / 1000, _MAX_LIMITED_PAUSE_S)
        self._process_queue.pull_ended(error)
        self._is_unsure = True
        self._client.failure_log.report(f"can't pull {queue} for group {self._group}", error)
        if isinstance(error, BrokerError):
            if error.code == ResponseCode.FLOW_CONTROL:
                return FLOW_CONTROL_DELAY_S
            if error.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
                await self._client.greet_again(error.address)
            # A slave may refuse reads.
            self._broker_id = MASTER_ID
        else:
            # Another replica may be available. As soon as there is a master, a slave directs the consumer to it.
            self._broker_id = self._client.routes.next_replica(queue.broker_name, self._broker_id)
        return await self._client.recover(queue.topic, queue.broker_name, error, RETRY_DELAY_S)
