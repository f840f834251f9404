"""State that all client programs of a run share: their history, and the addresses of the servers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from math import inf
from typing import Any, TypeVar

from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.message_id import decode_offset_message_id
from sim.cluster import Program, Servers
from sim.copies import Copies
from sim.history import Delay, Handling, History, Received, Sent
from sim.plan import Plan, broker_name
from sim.replicas_plan import CONTROLLED
from sim.system import World

T = TypeVar("T")

#: Delay before a failed call is repeated, in seconds.
AGAIN_S = 0.5
#: Delay between the start of consumers and the first message, in seconds. Groups assign their queues in this time, so
#: that no rebalance delivers messages twice.
PRODUCERS_S = 8.0
#: Longest time for which a consumer may trust the lock of a dead broker, with the restart of the broker, in seconds.
_LOCK_LIFE_S = 90.0

#: Longest time from the due time of a message to its arrival, in seconds.
_DUE_S = 10.0

#: Longest time from a power failure of a broker until all consumers have pulled from it again, in seconds.
_BACK_S = 60.0

#: Faults of wall clocks.
CLOCKS = ("clock", "far-clock", "drift")

Queue = tuple[str, str, int]


def has_wrong_clocks(plan: Plan) -> bool:
    """Returns true if a clock of this plan is wrong for some time."""
    return any(fault.kind in CLOCKS for fault in plan.faults)


class Scene:
    """Shared state of one run."""

    def __init__(self, world: World, plan: Plan, history: History, servers: Servers) -> None:
        self.world = world
        self.plan = plan
        self.history = history
        self.servers = servers
        self.names = servers.addresses
        #: The topic of each group, and the names of the messages that it has received.
        self.reads: dict[str, str] = {}
        self.had: dict[str, set[str]] = defaultdict(set)
        #: Messages that a group with a filter must receive.
        self.wants: dict[str, Callable[[Sent], bool]] = {}
        #: Log positions of flipped bits, by broker.
        self.rotten: dict[str, int] = {}
        #: Time until which the syncs of a broker's log lied, in seconds.
        self.lied_until: dict[str, float] = {}
        #: Topics with a deletion request. It may not have reached all brokers.
        self.deleted: set[str] = set()
        #: Recreated topics of which a master lacks a deletion. Brokers that had it lack the old queues.
        self.undeleted: set[str] = set()
        #: True if the controllers' state was replaced by an old copy.
        self.has_gone_back = False
        #: (broker, begin, end) of each absence of a master; times in seconds.
        self.absences: list[tuple[str, float, float]] = []
        #: Brokers whose disks were lost.
        self.lost_disks: set[str] = set()
        #: Consumers that are assigned each queue, by group.
        self.readers: dict[str, dict[Queue, set[str]]] = defaultdict(lambda: defaultdict(set))
        #: Time of the last assignment of each group, in seconds.
        self.assigned_at: dict[str, float] = {}
        #: Time in seconds at which all NameServers restarted; whether their disks were new.
        self.name_servers_at = -inf
        self.has_new_name_servers = False
        #: Running push and lite pull consumers of each group, with their start times in seconds.
        self.members: dict[str, dict[str, float]] = defaultdict(dict)
        #: Callback for each delivered message. Returns `Received.in_memory_of`.
        self.has_read: Callable[[MessageExt], str] = lambda message: ""
        #: Sent length of the body of plain messages, and the received lengths.
        self.lengths: dict[str, int] = {}
        self.received_lengths: dict[str, set[int]] = defaultdict(set)
        #: Copies of each message of the usual topic in the brokers' logs at the end, by its name.
        self.copies: dict[str, Copies] = {}
        #: Unique id -> name of its message.
        self._ids: dict[str, str] = {}
        #: Groups that receive messages repeatedly even without a fault.
        self.rewound: set[str] = set()
        #: Predicates for messages that need not arrive, for example because a fault may remove them.
        self.excuses: list[Callable[[Sent], bool]] = [self.is_put_off] if has_wrong_clocks(plan) else []
        #: Time of the last death of a broker, by name. Its locks are lost, as in Java, but their holders still trust
        #: them.
        self._broker_died: dict[str, float] = {}
        #: Time of the last power failure of a broker's machine, by name of the program.
        self._lost_power: dict[str, float] = {}

    @property
    def has_server_faults(self) -> bool:
        """True if the plan has a fault of a server or of all connections."""
        clients = set(self.plan.clients)
        return any(fault.whom not in clients or fault.kind == "reset" for fault in self.plan.faults)

    def now(self) -> float:
        return self.world.loop.time()

    def program(self, name: str, address: str, main: Callable[[Program], Coroutine[Any, Any, None]]) -> Program:
        return Program(self.world.host(name, address), main)

    async def until_done(self, program: Program, work: Callable[[], Awaitable[T]]) -> T:
        """Repeats a call until it succeeds. Returns its result."""
        while True:
            try:
                return await work()
            except GantryError as e:
                self.history.fail(self.now(), program.name, e)
                await asyncio.sleep(AGAIN_S)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Waits until `is_so` returns true. Polls every `AGAIN_S` seconds."""
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)

    # -- events of clients --------------------------------------------------------------------------------------

    def ask(self, message: Sent) -> None:
        self.history.ask(message)

    def stored(self, name: str, result: SendResult | None = None, number: int | None = None) -> None:
        """Records an acknowledgement. With slaves, only SEND_OK counts; with a controller, every result of `send`.

        `number` is the index of the message within `result`. It is None if the message enters its queue later.
        """
        if result is not None:
            if not number:
                self._look_at_ids(name, result.msg_id.split(","))
            is_kept = result.status is SendStatus.SEND_OK or self.plan.mode == CONTROLLED
            if self.plan.mode and not is_kept:
                self.history.note(self.now(), f"{name}: {result.status.name}")
                return
            sent, ids = self.history.sent[name], result.offset_msg_id.split(",")
            sent.stored_by, sent.physical_offset = decode_offset_message_id(ids[number or 0])
            sent.broker = result.queue.broker_name
            sent.is_flushed = result.status is SendStatus.SEND_OK
            if number is not None:
                sent.place = sent.broker, result.queue.queue_id, result.queue_offset + number
        self.history.acknowledge(name, self.now())

    def _look_at_ids(self, name: str, ids: list[str]) -> None:
        """Reports messages with the same unique id."""
        for unique_id in ids:
            other = self._ids.setdefault(unique_id, name)
            if other != name:
                self.history.problems.append(f"{other} and {name} have the same unique id {unique_id}")

    def receive(self, message: MessageExt, group: str, by: str, name: str = "") -> str:
        """Records a delivery. Returns the name of the message, which is its body unless `name` is given."""
        name = name or message.body.decode().strip()
        in_memory_of = self.has_read(message)
        place = message.broker_name, message.queue_id, message.queue_offset
        self.record(Received(name, group, self.now(), by, *place, in_memory_of))
        if name in self.lengths:
            self.received_lengths[name].add(len(message.body))
        return name

    def record(self, received: Received) -> None:
        """Records the delivery of a message to a client of any kind."""
        self.history.receive(received)
        self.had[received.group].add(received.name)

    def lacks(self, group: str) -> list[str]:
        """Returns the acknowledged messages that the group has not received."""
        return list(self._lacking(group))

    def has_all(self, group: str) -> bool:
        """Returns true if the group has received all acknowledged messages."""
        return not any(True for _ in self._lacking(group))

    def _lacking(self, group: str) -> Iterator[str]:
        topic, had, wants = self.reads[group], self.had[group], self.wants.get(group)
        for name, one in self.history.sent.items():
            if (
                name not in had
                and one.topic == topic
                and one.stored_at is not None
                and (wants is None or wants(one))
                and not self.is_excused(one)
            ):
                yield name

    def is_excused(self, sent: Sent) -> bool:
        """Returns true if the message need not arrive."""
        return any(excuse(sent) for excuse in self.excuses)

    def is_put_off(self, sent: Sent) -> bool:
        """Returns true if the delivery time was set by a clock that was ahead, and is not reached yet."""
        if sent.delay not in (Delay.AFTER, Delay.AT):
            return False
        if sent.delay is Delay.AT:
            late_s = sent.clock_error_s
        else:
            stored_by = sent.stored_at if sent.stored_at is not None else sent.asked_at + _DUE_S
            _, late_s = self.clock_errors(sent.broker, sent.asked_at, stored_by)
        return late_s > 0 and self.now() < sent.not_before + late_s + _DUE_S

    def clock_errors(self, broker: str, since: float, until: float) -> tuple[float, float]:
        """Returns the smallest and the largest error of the clocks of a name's brokers between two times, in
        seconds.

        With acting masters, all brokers count, because they deliver for each other.
        """
        errors = [
            program.host.clock_errors(since, until)
            for program in self.servers.brokers
            if self.plan.acting or not broker or broker_name(program.name) == broker
        ]
        return min(least for least, _ in errors), max(most for _, most in errors)

    def is_settled(self, broker: str) -> bool:
        """Returns true if locks and assignments from before the last death of this broker have expired."""
        gone = max(self._broker_died.get(broker, -inf), self.servers.became_master.get(broker, -inf))
        return self.now() >= gone + _LOCK_LIFE_S

    def lost_power(self, program: Program) -> None:
        self._lost_power[program.name] = self.now()

    def ends(self, program: Program) -> None:
        """Records a SIGTERM of a program. If a broker gets it soon after a power failure, messages can be skipped.

        A restarted broker sends consumers back that have received messages which the power failure destroyed. It does
        so until it is restarted in order, because it does not store which messages a queue has lost. A consumer that
        has not pulled until then skips new messages at the offsets of lost ones. With Java's brokers, consumers skip
        them after each power failure.
        """
        since = self.now()
        if since < self._lost_power.get(program.name, -inf) + _BACK_S:
            name = broker_name(program.name)
            self.excuses.append(
                lambda sent: sent.broker == name and (sent.stored_at or 0.0) > since and self._has_old_offset(sent)
            )

    def _has_old_offset(self, sent: Sent) -> bool:
        """Returns true if consumers have received an earlier message at the offset of this one."""
        return any(
            (one.broker, one.queue, one.offset) == sent.place
            and one.name != sent.name
            and one.name in self.history.sent
            and self.history.sent[one.name].topic == sent.topic
            for one in self.history.received
        )

    # -- queues of consumers ------------------------------------------------------------------------------------

    def assigned(self, group: str, by: str, queues: Iterable[MessageQueue]) -> None:
        self.assigned_at[group] = self.now()
        for queue in queues:
            self.readers[group][queue.broker_name, queue.topic, queue.queue_id].add(by)

    def revoked(self, group: str, by: str, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self.readers[group][queue.broker_name, queue.topic, queue.queue_id].discard(by)

    def joined(self, group: str, by: str) -> None:
        """Records the start of a consumer."""
        self.members[group][by] = self.now()

    def left(self, group: str, by: str) -> None:
        """Records the orderly end of a consumer."""
        self.members[group].pop(by, None)

    # -- orderly handlers ---------------------------------------------------------------------------------------

    def begin(self, group: str, queue: Queue, by: str) -> None:
        """Records the start of an orderly handler. Reports a problem if another one handles the same queue."""
        if not self.is_settled(queue[0]):
            return
        for other in self.history.handling:
            if (other.group, other.queue) == (group, queue):
                self.history.problems.append(
                    f"at {self.now():.3f} s two handlers of {group} are at work on {queue}: {other.by} and {by}"
                )
        self.history.handling.append(Handling(group, queue, by))

    def end(self, group: str, queue: Queue, by: str) -> None:
        for place, other in enumerate(self.history.handling):
            if (other.group, other.queue, other.by) == (group, queue, by):
                del self.history.handling[place]
                return

    def died(self, program: Program) -> None:
        """Removes the handlers and assignments of a dead client, or records the death of a broker and its locks."""
        if program.name.startswith("broker"):
            self._broker_died[broker_name(program.name)] = self.now()
        self.history.handling = [one for one in self.history.handling if one.by != program.name]
        for members in self.members.values():
            members.pop(program.name, None)
        for readers in self.readers.values():
            for names in readers.values():
                names.discard(program.name)
