"""Sender: brings encoded messages to a broker: route, queue, request, further tries.

Topics have their namespace here. Source: client/impl/producer/DefaultMQProducerImpl (sendDefaultImpl, sendKernelImpl).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from gantrymq.background.repeating import Repeating
from gantrymq.client.broker_api import TIMEOUT_MS, SendResult, SendStatus
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.failover import is_role_change
from gantrymq.client.producing.latency_fault import DETECT_INTERVAL_MS, DETECT_TIMEOUT_MS, LatencyFaults
from gantrymq.client.producing.outgoing import Outgoing
from gantrymq.client.producing.publish_info import TopicPublishInfo
from gantrymq.client.producing.send_command import DEFAULT_TOPIC_QUEUE_NUMS, send_command
from gantrymq.client.routes import no_writable_queue, write_queues
from gantrymq.errors import (
    BrokerError,
    BrokerUnavailable,
    ConnectFailed,
    GantryError,
    IllegalMessage,
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
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC, SEND_FORBIDDEN_TOPICS, topic_problem
from gantrymq.system import clock
from gantrymq.system.clock import now_ms

log = peer_log(__name__)

#: Answers after which another broker may take the message (`DefaultMQProducer.retryResponseCodes`).
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


#: A try among several brokers has so much of the send's time at least: no broker stands still for longer in passing.
MIN_SHARE_MS = 250
#: While a broker's master changes, the next attempt follows after so long or when the route changes; after twice as
#: long each time, up to the second value, s.
MOVING_S = 0.05
MOVING_MAX_S = 0.5
#: A further try isn't begun with less time than this left: it would only hide what ended the others.
MIN_TRY_MS = 10


@dataclass(frozen=True, slots=True)
class SendSettings:
    """How hard a producer tries; `Producer` says what each means."""

    retry_times: int = 2
    retry_when_not_stored_safely: bool = False
    try_timeout_ms: int | None = None
    send_latency_fault_enable: bool = True
    start_detector_enable: bool = False
    create_topic_key: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS


class Sender:
    """Sends what is encoded, for a producer `group` whose connections and routes are `client`'s."""

    def __init__(self, client: ClientInstance, group: str, settings: SendSettings) -> None:
        self.client = client
        self._group = group
        self._retry_times = settings.retry_times
        self._retry_when_not_stored_safely = settings.retry_when_not_stored_safely
        self._try_timeout_ms = settings.try_timeout_ms
        self._create_topic_key = settings.create_topic_key
        self._default_topic_queue_nums = settings.default_topic_queue_nums
        self._faults = LatencyFaults() if settings.send_latency_fault_enable else None
        self._detector: Repeating | None = None
        if settings.send_latency_fault_enable and settings.start_detector_enable:
            self._detector = Repeating("the search for brokers that are back", self._detect, DETECT_INTERVAL_MS / 1000)
            self._detector.start()
        self._publish_infos: dict[str, tuple[TopicRouteData, TopicPublishInfo]] = {}

    async def close(self) -> None:
        """Ends the detector; the client is its owner's to close."""
        if self._detector is not None:
            await self._detector.stop()

    def send(self, outgoing: Outgoing, timeout_ms: int, queue: MessageQueue | None) -> Coroutine[Any, Any, SendResult]:
        """Stores `outgoing` in `queue`, or in the queues' turn with further tries. Raises as `Producer.send`."""
        # Each coroutine that waits for another costs 0.2 us a message, so there are as few as can be.
        if queue is not None:
            return self._send_to_one(queue, outgoing, timeout_ms)
        return self._send_with_retries(outgoing, timeout_ms)

    async def send_oneway(self, outgoing: Outgoing, queue: MessageQueue | None) -> str:
        """Sends to `queue`, or to the next in turn, without an answer; host:port of its broker."""
        if queue is None:
            info = await self.publish_info(outgoing.topic, TIMEOUT_MS)
            faults = self._faults
            queue = info.select() if faults is None else faults.select(info, None, int(clock.monotonic() * 1000))
        address = await self.broker_address(queue, TIMEOUT_MS)
        await self.client.api.send_oneway(address, self._command(queue, outgoing))
        return address

    async def publish_info(self, topic: str, timeout_ms: int) -> TopicPublishInfo:
        """The topic's queues. While no broker of the topic has a master, it waits for one.

        Raises IllegalMessage, NoRouteInfo, ClientError, and after `timeout_ms` BrokerUnavailable or RequestTimeout.
        """
        unavailable: BrokerUnavailable | None = None
        pause_s = MOVING_S
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    try:
                        return self._known_publish_info(topic) or await self._find_publish_info(topic)
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
        """host:port of the master that has `queue`, once there is one. Raises BrokerUnavailable after `timeout_ms`."""
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

    async def _send_to_one(self, queue: MessageQueue, outgoing: Outgoing, timeout_ms: int) -> SendResult:
        """To one queue, whichever broker of its name is master, or will be in time."""
        deadline = clock.monotonic() + timeout_ms / 1000
        left_ms, pause_s = timeout_ms, MOVING_S
        unknown: SendOutcomeUnknown | None = None
        while True:
            try:
                return await self._send_to(queue, outgoing, left_ms, left_ms)
            except (BrokerError, RemotingError) as e:
                self.client.report_failure(queue.topic, e)
                if not self._is_moving(queue, e):
                    raise
                refused = e
            log.info("send of %s to %s failed: %s", outgoing.msg_id, queue, refused)
            unknown = unknown or _stored_by_former_master(refused)
            pause_s = await self._wait_for_master(queue, refused, deadline, pause_s)
            left_ms = int((deadline - clock.monotonic()) * 1000)
            if left_ms < MIN_TRY_MS:
                raise unknown or _no_master(refused) from refused

    async def _send_with_retries(self, outgoing: Outgoing, timeout_ms: int) -> SendResult:
        now = clock.monotonic
        deadline = now() + timeout_ms / 1000
        info = self._known_publish_info(outgoing.topic) or await self.publish_info(outgoing.topic, timeout_ms)
        faults = self._faults
        try_timeout_ms = self._try_timeout_ms
        if try_timeout_ms is None and info.has_several_brokers:
            # The last try, which has what is left, gets two shares: nothing comes after it.
            try_timeout_ms = max(timeout_ms // (2 + self._retry_times), MIN_SHARE_MS)
        tried: list[str] = []
        error: BrokerError | RemotingError | BrokerUnavailable | None = None
        moving_s = MOVING_S
        unknown: SendOutcomeUnknown | None = None
        result: SendResult | None = None
        is_moving = False
        attempt = -1
        while attempt < self._retry_times:
            attempt += 1
            began = now()
            began_ms = int(began * 1000)
            try_ms = left_ms = int((deadline - began) * 1000)
            if left_ms <= (MIN_TRY_MS if tried else 0):
                break
            if try_timeout_ms is not None and attempt < self._retry_times:
                try_ms = min(left_ms, try_timeout_ms)
            last = tried[-1] if tried else None
            queue = info.select(last) if faults is None else faults.select(info, last, began_ms)
            tried.append(queue.broker_name)
            fault = None if faults is None else faults.begin(queue.broker_name, began_ms)
            answered = is_moving = False
            try:
                result = await self._send_to(queue, outgoing, try_ms, 0 if info.has_several_brokers else try_ms)
                answered = True
            except RemotingError as e:
                error = e
                self.client.report_failure(queue.topic, e)
                self._isolate(queue, began_ms, reachable=self._detector is None)
                if isinstance(e, SendOutcomeUnknown):
                    unknown = e
                    if e.status is not None and not self._retry_when_not_stored_safely:
                        break  # The master has the message: a further try would store it twice.
                if is_timeout(e) and try_ms == left_ms:
                    break  # The time is over, whatever the clock's last millisecond says.
                is_moving = self._is_moving(queue, e)
            except BrokerUnavailable as e:
                error = e
                self._isolate(queue, began_ms, reachable=False)
                if not info.has_several_brokers:
                    break  # The attempt has waited for a master until its time was over.
            except BrokerError as e:
                answered = True
                self._isolate(queue, began_ms, reachable=False)
                error = e
                unknown = unknown or _stored_by_former_master(e)
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
            log.info("send of %s to %s failed: %s", outgoing.msg_id, queue, error)
            if is_moving and not info.has_several_brokers and now() + MOVING_S < deadline:
                # Another broker of that name is going to be master. The attempt doesn't count.
                attempt -= 1
                tried.pop()
                moving_s = await self._wait_for_master(queue, error, deadline, moving_s)
        if result is not None:
            return result
        # What one broker refused another may have stored before.
        error = unknown or error
        if error is None:
            error = RequestTimeout(f"{timeout_ms} ms were over before the first try", info.queues[0].broker_name)
        if is_moving and unknown is None:
            refusal, error = error, _no_master(error)
            error.__cause__ = refusal
        error.add_note(f"tried {len(tried)} times in {timeout_ms} ms, on brokers {', '.join(tried)}")
        raise error

    async def _wait_for_master(self, queue: MessageQueue, error: GantryError, deadline: float, pause_s: float) -> float:
        """Waits for another master of the queue's broker, but not for long: the same one may take messages again.

        Returns how long to wait after the next failure.
        """
        left_s = max(deadline - clock.monotonic(), 0.0)
        await asyncio.sleep(await self.client.recover(queue.topic, queue.broker_name, error, min(pause_s, left_s)))
        return min(2 * pause_s, MOVING_MAX_S)

    def _isolate(self, queue: MessageQueue, began_ms: int, *, reachable: bool) -> None:
        if self._faults is not None:
            now_ms = int(clock.monotonic() * 1000)
            self._faults.update(queue.broker_name, now_ms - began_ms, now_ms, isolate=True, reachable=reachable)

    async def _detect(self) -> None:
        """Asks the brokers that failed whether they answer again (`LatencyFaultToleranceImpl.detectByOneRound`)."""
        assert self._faults is not None
        client = self.client
        topic = next(iter(self._publish_infos), None)
        for broker in self._faults.due(int(clock.monotonic() * 1000)):
            address = client.routes.master_address(broker)
            if address is None:
                self._faults.forget(broker)
            elif topic is not None:
                try:
                    await client.api.max_offset(address, topic, 0, DETECT_TIMEOUT_MS, broker_name=broker)
                    self._faults.detected(broker)
                except (RemotingError, BrokerError) as e:
                    log.debug("broker %s is not back: %s", broker, e)

    def _is_moving(self, queue: MessageQueue, error: GantryError) -> bool:
        """Whether the failure of a send can mean that another broker of the same name becomes master."""
        if isinstance(error, ConnectFailed):
            replicas = self.client.routes.all_brokers().get(queue.broker_name, {})
            return len(replicas) > 1 or MASTER_ID not in replicas
        return is_role_change(error)

    def _send_to(
        self, queue: MessageQueue, outgoing: Outgoing, timeout_ms: int, master_wait_ms: int
    ) -> Coroutine[Any, Any, SendResult]:
        """Sends to the master of the queue's broker; waits up to `master_wait_ms` of the time until there is one."""
        address = self.client.routes.master_address(queue.broker_name)
        if address is None:
            return self._find_and_send_to(queue, outgoing, timeout_ms, master_wait_ms)
        command = self._command(queue, outgoing, timeout_ms)
        return self.client.api.send(address, command, queue, msg_id=outgoing.msg_id, timeout_ms=timeout_ms)

    async def _find_and_send_to(
        self, queue: MessageQueue, outgoing: Outgoing, timeout_ms: int, master_wait_ms: int
    ) -> SendResult:
        began = clock.monotonic()
        address = await self.broker_address(queue, master_wait_ms)
        timeout_ms = max(1, timeout_ms - int((clock.monotonic() - began) * 1000))
        command = self._command(queue, outgoing, timeout_ms)
        return await self.client.api.send(address, command, queue, msg_id=outgoing.msg_id, timeout_ms=timeout_ms)

    def _command(self, queue: MessageQueue, outgoing: Outgoing, timeout_ms: int = TIMEOUT_MS) -> RemotingCommand:
        _, body, properties, flag, sys_flag, batch, _, reply, reconsume_times, max_reconsume_times = outgoing
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
            timeout_ms=timeout_ms,
        )

    def _known_publish_info(self, topic: str) -> TopicPublishInfo | None:
        known = self._publish_infos.get(topic)
        # A changed route is another object.
        if known is not None and known[0] is self.client.routes.cached(topic):
            return known[1]
        return None

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
            # An operator may have changed the permission again.
            route = await routes.refresh(topic)
            queues = write_queues(topic, route)
        if not queues:
            raise no_writable_queue(topic, route)
        info = TopicPublishInfo(queues)
        self._publish_infos[topic] = route, info
        return info


def _stored_by_former_master(refusal: GantryError) -> SendOutcomeUnknown | None:
    """The error for a message that a former master has stored; a new master may have it."""
    if not isinstance(refusal, BrokerError) or refusal.reason is not RefusalReason.MAY_BE_STORED:
        return None
    unknown = SendOutcomeUnknown(f"the message may be stored: {refusal}", refusal.address)
    unknown.__cause__ = refusal
    return unknown


def _no_master(refusal: GantryError) -> BrokerUnavailable:
    """The error of a `send` that timed out before a broker of the topic was master."""
    return BrokerUnavailable(f"no broker takes the message at present: {refusal}")


def is_timeout(error: BaseException) -> bool:
    """Whether a send ended because its time was over."""
    return isinstance(error, RequestTimeout) or isinstance(error.__cause__, RequestTimeout)
