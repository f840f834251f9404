"""Sender: sends encoded messages. Finds the route, picks a queue, makes the request and retries it.

Topics include the namespace. Source: client/impl/producer/DefaultMQProducerImpl (sendDefaultImpl, sendKernelImpl).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from gantrymq.background.repeating import Repeating
from gantrymq.client.broker_api import TIMEOUT_MS, SendResult, SendStatus, send_result, unknown_outcome
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.failover import is_role_change
from gantrymq.client.producing.latency_fault import DETECT_INTERVAL_MS, DETECT_TIMEOUT_MS, LatencyFaults
from gantrymq.client.producing.message_encoder import EncodedMessage
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.client.producing.publish_info import TopicPublishInfo
from gantrymq.client.producing.send_attempt import SendAttempt
from gantrymq.client.producing.send_command import constant_fields, rounded_timeout, send_command
from gantrymq.client.routes import no_writable_queue, write_queues
from gantrymq.errors import (
    BrokerError,
    BrokerUnavailable,
    ConnectFailed,
    ConnectionLost,
    GantryError,
    IllegalMessage,
    ProtocolError,
    RefusalReason,
    RemotingError,
    RequestTimeout,
    SendOutcomeUnknown,
)
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID, TopicRouteData
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import SEND_FORBIDDEN_TOPICS, topic_problem
from gantrymq.system import clock
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

#: Responses after which another broker may accept the message (`DefaultMQProducer.retryResponseCodes`).
RETRY_RESPONSE_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)


#: Shortest timeout of an attempt if there are several brokers, ms. Pauses of a healthy broker are shorter.
MIN_SHARE_MS = 250
#: While a broker's master changes, the next attempt starts after this time, or when the route changes, s. The time
#: doubles after each attempt, up to MOVING_MAX_S.
MOVING_S = 0.05
MOVING_MAX_S = 0.5
#: If less time is left, there is no further attempt, because its timeout would hide the earlier error, ms.
MIN_TRY_MS = 10


class Sender:
    """Sends encoded messages for a producer `group`, with the connections and routes of `client`."""

    def __init__(self, client: ClientInstance, group: str, options: ProducerOptions) -> None:
        self.client = client
        self._group = group
        self._retry_times = options.retry_times
        self._retry_when_not_stored_safely = options.retry_when_not_stored_safely
        self._try_timeout_ms = options.try_timeout_ms
        self._create_topic_key = options.create_topic_key
        self._default_topic_queue_nums = options.default_topic_queue_nums
        self._unit_mode = options.unit_mode
        #: The brokers to avoid; None if `send_latency_fault_enable` is off.
        self.faults = LatencyFaults() if options.send_latency_fault_enable else None
        self._detector: Repeating | None = None
        if options.send_latency_fault_enable and options.start_detector_enable:
            self._detector = Repeating("the search for brokers that are back", self._detect, DETECT_INTERVAL_MS / 1000)
            self._detector.start()
        self._publish_infos: dict[str, tuple[TopicRouteData, TopicPublishInfo]] = {}

    async def close(self) -> None:
        """Stops the detector. It does not close the client."""
        if self._detector is not None:
            await self._detector.stop()

    def send(
        self, encoded: EncodedMessage, timeout_ms: int, queue: MessageQueue | None
    ) -> Coroutine[Any, Any, SendResult]:
        """Stores `encoded` in `queue`; without it, round robin with retries. Raises the errors of `Producer.send`."""
        # Each nested coroutine costs 0.2 us per message, so there are as few as possible.
        if queue is not None:
            return self._send_to_one(queue, encoded, timeout_ms)
        return self._send_with_retries(encoded, timeout_ms)

    async def send_oneway(self, encoded: EncodedMessage, queue: MessageQueue | None) -> str:
        """Sends to `queue`, or to the next queue, without a response. Returns HOST:PORT of its broker."""
        if queue is None:
            info = await self.publish_info(encoded.topic, TIMEOUT_MS)
            faults = self.faults
            queue = info.select() if faults is None else faults.select(info, None, int(clock.monotonic() * 1000))
        address = await self.broker_address(queue, TIMEOUT_MS)
        await self.client.api.send_oneway(address, self._command(queue, encoded))
        return address

    async def publish_info(self, topic: str, timeout_ms: int) -> TopicPublishInfo:
        """Returns the queues of a topic. Waits while no broker of the topic has a master.

        Raises IllegalMessage, NoRouteInfo or ClientError and, after `timeout_ms`, BrokerUnavailable or RequestTimeout.
        """
        unavailable: BrokerUnavailable | None = None
        pause_s = MOVING_S
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    try:
                        return self.known_publish_info(topic) or await self._find_publish_info(topic)
                    except BrokerUnavailable as e:
                        unavailable = e
                    self.client.report_failure(topic, unavailable)
                    await self.client.route_change(topic, pause_s)
                    pause_s = min(2 * pause_s, MOVING_MAX_S)
        except TimeoutError:
            if unavailable is not None:
                unavailable.add_note(f"waited for a master for {timeout_ms} ms")
                raise unavailable from None
            name_servers = ";".join(self.client.routes.name_servers)
            message = f"no route of topic {topic} from {name_servers} in {timeout_ms} ms"
            raise RequestTimeout(message, name_servers) from None

    async def broker_address(self, queue: MessageQueue, timeout_ms: int) -> str:
        """Returns HOST:PORT of the master of `queue`. Raises BrokerUnavailable if there is none within `timeout_ms`."""
        routes, name = self.client.routes, queue.broker_name
        deadline = clock.monotonic() + timeout_ms / 1000
        while (address := routes.master_address(name)) is None:
            error = BrokerUnavailable(f"broker {name} has no master at present: try again")
            self.client.report_failure(queue.topic, error)
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                raise error
            await self.client.route_change(queue.topic, min(left_s, MOVING_MAX_S))
        return address

    async def _send_to_one(self, queue: MessageQueue, encoded: EncodedMessage, timeout_ms: int) -> SendResult:
        """Sends to one queue. Retries within the timeout while the broker has no master or changes its master."""
        deadline = clock.monotonic() + timeout_ms / 1000
        left_ms, pause_s = timeout_ms, MOVING_S
        unknown: SendOutcomeUnknown | None = None
        repeats_left = self._retry_times
        while True:
            try:
                return await self._send_to(queue, encoded, left_ms, left_ms)
            except (BrokerError, RemotingError) as e:
                if isinstance(e, BrokerError) and e.retry_after_ms is not None:
                    has_waited = await _waited_for_rate_limit(e, e.retry_after_ms, deadline)
                    left_ms = int((deadline - clock.monotonic()) * 1000)
                    if has_waited and left_ms >= MIN_TRY_MS:
                        continue
                    if unknown is not None:
                        raise unknown from e
                    raise
                self.client.report_failure(queue.topic, e)
                if not self._is_moving(queue, e):
                    if unknown is not None:
                        # A later rejection must not hide that the message may be stored.
                        raise unknown from e
                    raise
                refused = e
            log.info("send of %s to %s failed: %s", encoded.msg_id, queue, refused)
            if (stored := _maybe_stored(refused)) is not None:
                unknown = unknown or stored
                if not repeats_left:
                    raise unknown from refused
                repeats_left -= 1
            pause_s = await self._wait_for_master(queue, refused, deadline, pause_s)
            left_ms = int((deadline - clock.monotonic()) * 1000)
            if left_ms < MIN_TRY_MS:
                raise unknown or _no_master(refused) from refused

    def stored(self, attempt: SendAttempt) -> None:
        """Records the end of a successful attempt."""
        if self.faults is not None and attempt.fault is not None:
            self.faults.stored(attempt.fault, int(attempt.began * 1000), int(clock.monotonic() * 1000))

    def cancelled(self, attempt: SendAttempt) -> None:
        """Records that the caller of an attempt was cancelled."""
        if self.faults is not None and attempt.fault is not None:
            self.faults.end(attempt.fault, int(clock.monotonic() * 1000), answered=False)

    def send_after(self, attempt: SendAttempt) -> Coroutine[Any, Any, SendResult]:
        """Continues a send whose first attempt has ended without a SendResult, like a send that began here."""
        return self._send_with_retries(attempt.encoded, attempt.send_timeout_ms, attempt)

    async def _send_with_retries(
        self, encoded: EncodedMessage, timeout_ms: int, ended: SendAttempt | None = None
    ) -> SendResult:
        """`ended` is the first attempt if `DirectSends` has made it."""
        now = clock.monotonic
        deadline = (now() if ended is None else ended.began) + timeout_ms / 1000
        if ended is not None:
            info = ended.info
        else:
            info = self.known_publish_info(encoded.topic) or await self.publish_info(encoded.topic, timeout_ms)
        faults = self.faults
        try_timeout_ms = self._try_timeout(info, timeout_ms)
        tried: list[str] = []
        error: BrokerError | RemotingError | BrokerUnavailable | None = None
        moving_s = MOVING_S
        unknown: SendOutcomeUnknown | None = None
        result: SendResult | None = None
        is_moving = False
        attempt = -1
        while attempt < self._retry_times:
            attempt += 1
            if ended is not None:
                began_ms, left_ms, try_ms = int(ended.began * 1000), timeout_ms, ended.timeout_ms
                queue, fault = ended.queue, ended.fault
            else:
                began = now()
                began_ms = int(began * 1000)
                try_ms = left_ms = int((deadline - began) * 1000)
                if left_ms <= (MIN_TRY_MS if tried else 0):
                    break
                if error is not None:
                    info = self._current_publish_info(encoded.topic) or info
                    try_timeout_ms = self._try_timeout(info, timeout_ms)
                if try_timeout_ms is not None and attempt < self._retry_times:
                    try_ms = min(left_ms, try_timeout_ms)
                last = tried[-1] if tried else None
                queue = info.select(last) if faults is None else faults.select(info, last, began_ms)
                fault = None if faults is None else faults.begin(queue.broker_name, began_ms)
            tried.append(queue.broker_name)
            answered = is_moving = False
            try:
                if ended is not None:
                    first, ended = ended, None
                    result = self._result_of(first)
                else:
                    result = await self._send_to(queue, encoded, try_ms, master_wait_ms=0)
                answered = True
            except RemotingError as e:
                error = e
                self.client.report_failure(queue.topic, e)
                self._isolate(queue, began_ms, reachable=self._detector is None)
                if isinstance(e, SendOutcomeUnknown):
                    unknown = e
                    if e.status is not None and not self._retry_when_not_stored_safely:
                        break  # The master has the message: another attempt would store it twice.
                if is_timeout(e) and try_ms == left_ms:
                    break  # The request timed out, even if one millisecond is left by this clock.
                is_moving = self._is_moving(queue, e)
            except BrokerUnavailable as e:
                error = e
                self._isolate(queue, began_ms, reachable=False)
                is_moving = not info.has_several_brokers
            except BrokerError as e:
                answered = True
                if e.retry_after_ms is not None:
                    error = e
                    if not await _waited_for_rate_limit(e, e.retry_after_ms, deadline):
                        break
                    # Another broker may have a limit that is not exceeded, so the next queue is selected as usual.
                    attempt -= 1
                    tried.pop()
                    continue
                self._isolate(queue, began_ms, reachable=False)
                error = e
                unknown = unknown or _maybe_stored(e)
                self.client.report_failure(queue.topic, e)
                is_moving = self._is_moving(queue, e)
                if not is_moving and e.code not in RETRY_RESPONSE_CODES:
                    break
            else:
                if faults is not None and fault is not None:
                    faults.stored(fault, began_ms, int(now() * 1000))
                    fault = None
                if result.status is SendStatus.SEND_OK or not self._retry_when_not_stored_safely:
                    return result
                continue
            finally:
                if faults is not None and fault is not None:
                    faults.end(fault, int(now() * 1000), answered=answered)
            log.info("send of %s to %s failed: %s", encoded.msg_id, queue, error)
            if is_moving and not info.has_several_brokers and now() + MOVING_S < deadline:
                # A broker of that name becomes master, or a broker of another name returns to the route. The attempt
                # counts as a retry only if it may have stored the message.
                if _maybe_stored(error) is None:
                    attempt -= 1
                    tried.pop()
                if attempt < self._retry_times:
                    moving_s = await self._wait_for_master(queue, error, deadline, moving_s)
        if result is not None:
            return result
        # An earlier attempt may have stored the message, so a later rejection must not hide it.
        error = unknown or error
        if error is None:
            error = RequestTimeout(f"{timeout_ms} ms were over before the first try", info.queues[0].broker_name)
        if is_moving and unknown is None and not isinstance(error, BrokerUnavailable):
            refusal, error = error, _no_master(error)
            error.__cause__ = refusal
        error.add_note(f"tried {len(tried)} times in {timeout_ms} ms, on brokers {', '.join(tried)}")
        raise error

    def _result_of(self, attempt: SendAttempt) -> SendResult:
        """Returns the result of an attempt that has ended. Raises the errors of `BrokerApi.send`."""
        address, queue, msg_id = attempt.connection.address, attempt.queue, attempt.msg_id
        try:
            response = attempt.outcome.result()
            assert isinstance(response, RemotingCommand), "DirectSends returns results"
            return send_result(response, address, queue, msg_id)
        except (ConnectionLost, RequestTimeout, ProtocolError) as e:
            if isinstance(e, RequestTimeout):
                self.client.remoting.timed_out(attempt.connection, attempt.timeout_ms)
            raise unknown_outcome(e, address, queue, msg_id) from e

    def first_try_timeout_ms(self, info: TopicPublishInfo, timeout_ms: int) -> int:
        """Returns the timeout of the first attempt of a send with this timeout, in ms."""
        try_timeout_ms = self._try_timeout(info, timeout_ms)
        return timeout_ms if try_timeout_ms is None or not self._retry_times else min(timeout_ms, try_timeout_ms)

    def _try_timeout(self, info: TopicPublishInfo, timeout_ms: int) -> int | None:
        """Returns the timeout of an attempt, in ms; None if an attempt may take the whole timeout of the send."""
        if self._try_timeout_ms is None and info.has_several_brokers:
            # The last attempt gets all remaining time, which is two shares.
            return max(timeout_ms // (2 + self._retry_times), MIN_SHARE_MS)
        return self._try_timeout_ms

    async def _wait_for_master(self, queue: MessageQueue, error: GantryError, deadline: float, pause_s: float) -> float:
        """Waits until the route has another master for the queue's broker, for at most `pause_s`.

        The wait is short, because the former master may accept messages again. Returns the next pause, in seconds.
        """
        left_s = max(deadline - clock.monotonic(), 0.0)
        await asyncio.sleep(await self.client.recover(queue.topic, queue.broker_name, error, min(pause_s, left_s)))
        return min(2 * pause_s, MOVING_MAX_S)

    def _isolate(self, queue: MessageQueue, began_ms: int, *, reachable: bool) -> None:
        if self.faults is not None:
            now_ms = int(clock.monotonic() * 1000)
            self.faults.update(queue.broker_name, now_ms - began_ms, now_ms, isolate=True, reachable=reachable)

    async def _detect(self) -> None:
        """Probes the brokers that failed (`LatencyFaultToleranceImpl.detectByOneRound`)."""
        assert self.faults is not None
        client = self.client
        topic = next(iter(self._publish_infos), None)
        for broker in self.faults.due(int(clock.monotonic() * 1000)):
            address = client.routes.master_address(broker)
            if address is None:
                self.faults.forget(broker)
            elif topic is not None:
                try:
                    await client.api.max_offset(address, topic, 0, DETECT_TIMEOUT_MS, broker_name=broker)
                    self.faults.detected(broker)
                except (RemotingError, BrokerError) as e:
                    log.debug("broker %s is not back: %s", broker, e)

    def _is_moving(self, queue: MessageQueue, error: GantryError) -> bool:
        """Returns whether the failure can mean that the broker set is changing its master."""
        if isinstance(error, ConnectFailed):
            replicas = self.client.routes.all_brokers().get(queue.broker_name, {})
            return len(replicas) > 1 or MASTER_ID not in replicas
        return is_role_change(error)

    def _send_to(
        self, queue: MessageQueue, encoded: EncodedMessage, timeout_ms: int, master_wait_ms: int
    ) -> Coroutine[Any, Any, SendResult]:
        """Sends to the master of the queue's broker. Waits up to `master_wait_ms` for a master."""
        address = self.client.routes.master_address(queue.broker_name)
        if address is None:
            return self._find_and_send_to(queue, encoded, timeout_ms, master_wait_ms)
        command = self._command(queue, encoded, timeout_ms)
        return self.client.api.send(address, command, queue, msg_id=encoded.msg_id, timeout_ms=timeout_ms)

    async def _find_and_send_to(
        self, queue: MessageQueue, encoded: EncodedMessage, timeout_ms: int, master_wait_ms: int
    ) -> SendResult:
        began = clock.monotonic()
        address = await self.broker_address(queue, master_wait_ms)
        timeout_ms = max(1, timeout_ms - int((clock.monotonic() - began) * 1000))
        command = self._command(queue, encoded, timeout_ms)
        return await self.client.api.send(address, command, queue, msg_id=encoded.msg_id, timeout_ms=timeout_ms)

    def _command(self, queue: MessageQueue, encoded: EncodedMessage, timeout_ms: int = TIMEOUT_MS) -> RemotingCommand:
        _, body, properties, flag, sys_flag, batch, _, reply, reconsume_times, max_reconsume_times = encoded
        return send_command(
            self._group,
            queue,
            body,
            properties,
            now_ms(),
            flag=flag,
            sys_flag=sys_flag,
            batch=batch,
            reply=reply,
            reconsume_times=reconsume_times,
            max_reconsume_times=max_reconsume_times,
            create_topic_key=self._create_topic_key,
            default_topic_queue_nums=self._default_topic_queue_nums,
            unit_mode=self._unit_mode,
            timeout_ms=timeout_ms,
        )

    def constant_fields(self, queue: MessageQueue, timeout_ms: int) -> tuple[bytes, bytes]:
        """Returns the constant bytes of `send_frame` for ordinary messages to `queue`."""
        return constant_fields(
            self._group,
            queue,
            self._create_topic_key,
            self._default_topic_queue_nums,
            self._unit_mode,
            sys_flag=0,
            batch=False,
            reconsume_times=0,
            max_reconsume_times=None,
            timeout_ms=rounded_timeout(timeout_ms),
        )

    def known_publish_info(self, topic: str) -> TopicPublishInfo | None:
        """Returns the queues of a topic if they are cached and its route has not changed."""
        known = self._publish_infos.get(topic)
        # Each change of a route creates a new object.
        if known is not None and known[0] is self.client.routes.cached(topic):
            return known[1]
        return None

    def _current_publish_info(self, topic: str) -> TopicPublishInfo | None:
        """Returns the queues of the cached route; None if no route is cached or no broker in the route has a master."""
        info = self.known_publish_info(topic)
        route = self.client.routes.cached(topic)
        if info is None and route is not None and (queues := write_queues(topic, route)):
            info = TopicPublishInfo(queues)
            self._publish_infos[topic] = route, info
        return info

    async def _find_publish_info(self, topic: str) -> TopicPublishInfo:
        if not isinstance(topic, str):
            raise IllegalMessage(f"the message has no topic but {topic!r}: give the name of one")
        if problem := topic_problem(topic):
            raise IllegalMessage(problem)
        if topic in SEND_FORBIDDEN_TOPICS:
            raise IllegalMessage(f"clients may not send to the system topic {topic}")
        routes = self.client.routes
        route = await routes.get_or_default(topic, self._default_topic_queue_nums)
        queues = write_queues(topic, route)
        if not queues and not isinstance(no_writable_queue(topic, route), BrokerUnavailable):
            # The cached route may be outdated: an operator can have restored the permission.
            route = await routes.refresh(topic)
            queues = write_queues(topic, route)
        if not queues:
            raise no_writable_queue(topic, route)
        info = TopicPublishInfo(queues)
        self._publish_infos[topic] = route, info
        return info


def _maybe_stored(refusal: GantryError) -> SendOutcomeUnknown | None:
    """Returns an error if the broker may have stored the message that it rejected, else None."""
    if not isinstance(refusal, BrokerError) or refusal.reason is not RefusalReason.MAY_BE_STORED:
        return None
    unknown = SendOutcomeUnknown(f"the message may be stored: {refusal}", refusal.address)
    unknown.__cause__ = refusal
    return unknown


async def _waited_for_rate_limit(refusal: BrokerError, wait_ms: int, deadline: float) -> bool:
    """Waits until the broker, whose rate limit is exceeded, may accept the message.

    Returns False without waiting if the next attempt would begin too close to the deadline.
    """
    wait_s = wait_ms / 1000
    if clock.monotonic() + wait_s + MIN_TRY_MS / 1000 > deadline:
        refusal.add_note("the timeout of the send ends before this time: use a longer timeout, or send less")
        return False
    await asyncio.sleep(wait_s)
    return True


def _no_master(refusal: GantryError) -> BrokerUnavailable:
    """Returns the error of a send that timed out before any broker of the topic was master."""
    return BrokerUnavailable(f"no broker takes the message at present: {refusal}")


def is_timeout(error: BaseException) -> bool:
    """Returns whether a send timed out."""
    return isinstance(error, RequestTimeout) or isinstance(error.__cause__, RequestTimeout)
