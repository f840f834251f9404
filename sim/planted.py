"""Bugs that are planted on purpose. The simulator must find them, to prove that it finds bugs of this kind.

Each bug replaces a few words in a copy of the package. `./dev sim --planted` runs seeds until one fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import gantrymq


class Planted(NamedTuple):
    """A bug: `new` replaces `old`, which occurs once in `file`, a path relative to the package.

    If `says` is not empty, the bug counts as found only if a reported problem contains this text.
    """

    name: str
    file: str
    old: str
    new: str
    says: str = ""


_PACKAGE = Path(gantrymq.__file__).parent
_REFUSED = (
    "            self.put_times.add_failure()\n"
    "            raise RequestRefused("
    'ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {e}") from e\n'
    "        self.put_times.add(monotonic() - begin)\n"
)

BUGS = (
    Planted("a sync is skipped", "store/mapped_file.py", "files.fdatasync(fd)", "fd"),
    Planted("an entry is not synced", "store/mapped_file.py", "files.sync_entries(fd)", "fd"),
    Planted(
        "a response does not wait for the flush",
        "broker/append/pending_responses.py",
        "self._store.when_flushed(end, partial(self._flushed, waiting))",
        "self._loop.call_soon(self._answer, waiting, None)",
        "is not on the disk",
    ),
    Planted(
        "a failed job is never retried",
        "background/repeating.py",
        "self._again(self._after_error_s, min(self._after_error_s, LEAST_AFTER_ERROR_S))",
        "",
    ),
    Planted(
        "a flusher confirms before it syncs",
        "store/flusher.py",
        "        count = len(self._waiting)\n        try:\n",
        "        count = len(self._waiting)\n        self._answer(count, None)\n        try:\n",
        "acknowledged",
    ),
    Planted(
        "a consumer that stops commits nothing",
        "client/consuming/assigned_queues.py",
        "            if self._commits:\n                async with",
        "            if False:\n                async with",
        "has committed",
    ),
    Planted(
        "one error ends a flusher",
        "store/flusher.py",
        "        except Exception as e:\n            now =",
        "        except ZeroDivisionError as e:\n            now =",
    ),
    Planted(
        "an offset is committed beyond the handled messages",
        "client/consuming/process_queue.py",
        "return next(iter(self._pending), self.next_offset)",
        "return self.next_offset",
    ),
    Planted(
        "a failed message is not sent back",
        "client/consuming/concurrently.py",
        "            self._give_back(process_queue, message)\n\n    def _give_back",
        "            process_queue.remove(message)\n\n    def _give_back",
    ),
    Planted("half messages are delivered", "broker/send/processor.py", '"TRAN_MSG" in text', "False"),
    Planted(
        "a rollback commits", "broker/transaction/transactions.py", "if verdict == TRANSACTION_COMMIT:", "if True:"
    ),
    Planted(
        "a delay level delivers early", "broker/delay/levels.py", "if due_ms > now_ms:", "if due_ms > now_ms + 500:"
    ),
    Planted(
        "a broker registers only once",
        "broker/registration.py",
        "return 0.0 if server.topics or server.everything else self._period_s",
        "return inf",
    ),
    Planted(
        "routes of disconnected brokers are kept",
        "namesrv/server.py",
        "self.notifications.send(self.table.connections_closed(closed))",
        "closed.clear()",
    ),
    Planted(
        "an acknowledgement is ignored",
        "broker/pop/ack.py",
        "            if not self._buffer.ack(key, (offset,)):",
        "            if False:",
    ),
    Planted(
        "a queue lock is granted to every client",
        "broker/consumers/locks.py",
        "if held is not None and held.client_id != client_id and now - held.renewed <= LOCK_LIFE_S:",
        "if False:",
    ),
    Planted(
        "a pull skips a message",
        "client/consuming/queue_puller.py",
        "offset, process_queue.next_offset = process_queue.next_offset, result.next_begin_offset",
        "offset, process_queue.next_offset = process_queue.next_offset, result.next_begin_offset + 1",
    ),
    Planted(
        "a group whose messages were lost skips new ones",
        "broker/pull/reused_offsets.py",
        "if offset <= known or",
        "if True or",
    ),
    Planted(
        "a new directory is not synced", "store/directory.py", "files.make_lasting_directory", "files.make_directory"
    ),
    Planted(
        "long polls get no response at their timeout",
        "broker/pull/long_polling.py",
        "if second < int(now)",
        "if second < 0",
    ),
    Planted(
        "messages beyond the limit are acknowledged",
        "broker/append/appender.py",
        _REFUSED + "        self._arrived(queue)",
        "            return PutResult(queue.max_offset, self.store.max_physical_offset, 0, 0)\n"
        "        self.put_times.add(monotonic() - begin)\n"
        "        self._arrived(queue)",
    ),
    Planted(
        "a group's offsets are not saved",
        "broker/tables/consumer_offsets.py",
        "        queues[queue_id] = offset\n        self._file.changed()",
        "        queues[queue_id] = offset",
    ),
    Planted(
        "a timer slot is delivered twice",
        "broker/delay/timer_delivery.py",
        "slot.places.append(place)",
        "slot.places.extend((place, place))",
    ),
    Planted(
        "popped messages are redelivered too early",
        "broker/pop/revive_queue.py",
        "revive_ms = min(checkpoint.revive_time, stored_ms + CHECKPOINT_LEAD_MS)",
        "revive_ms = min(checkpoint.revive_time, stored_ms + CHECKPOINT_LEAD_MS) - 5_000",
    ),
    Planted(
        "a live broker is removed",
        "namesrv/route_table.py",
        "live.last_update_ms + live.heartbeat_timeout_ms < now_ms",
        "live.last_update_ms + 2_000 < now_ms",
    ),
    Planted(
        "a queue is unlocked while a handler has its message",
        "client/consuming/orderly.py",
        "        if waits:\n",
        "        if False:\n",
    ),
    Planted(
        "a lack of descriptors counts as a disk failure",
        "store/mapped_file.py",
        "            sync_file(self.path)\n",
        "            try:\n                sync_file(self.path)\n"
        "            except OSError as e:\n                raise SyncFailed(str(e)) from e\n",
    ),
    Planted(
        "a damaged message blocks its delay level",
        "broker/queue_reader.py",
        "        except RecordError as e:\n",
        "        except ZeroDivisionError as e:\n",
    ),
    Planted(
        "recalled messages are delivered",
        "broker/delay/timer_delivery.py",
        "            if slot.taken_back:\n",
        "            if False:\n",
    ),
    Planted(
        "a broadcast's offsets are not saved",
        "client/consuming/offset_store.py",
        "        try:\n            self._save()",
        "        try:\n            pass",
    ),
    Planted(
        "a changed configuration is not written",
        "broker/admin/broker_config.py",
        "replace_file(path, changed_properties(text, changes).encode())",
        "changed_properties(text, changes)",
    ),
    Planted(
        "a message moves to the dead-letter queue too early",
        "broker/send/retry_topics.py",
        "record.reconsume_times >= max_times or",
        "record.reconsume_times >= max_times - 1 or",
    ),
    Planted(
        "a directory's descriptor stays open",
        "store/mapped_file.py",
        "        sync_entries(fd, path)\n    finally:\n        files.close(fd)",
        "        sync_entries(fd, path)\n    finally:\n        pass",
    ),
    Planted(
        "consumers are not notified of a reset",
        "broker/admin/offsets.py",
        "        self._relay.push_reset(header.group, header.topic, header.timestamp, body)\n",
        "",
    ),
    # Replication: roles and what they promise.
    Planted(
        "a send does not wait for slaves",
        "broker/append/pending_responses.py",
        "if self._replicas != 1 and not self._slaves.is_reached(end, self._replicas):",
        "if False:",
    ),
    Planted(
        "slow slaves count as confirmed",
        "broker/append/pending_responses.py",
        "self._settle(waiting, _SLAVES, ResponseCode.FLUSH_SLAVE_TIMEOUT)",
        "self._settle(waiting, _SLAVES)",
    ),
    Planted(
        "a send returns before the in-sync set confirms it",
        "broker/append/pending_responses.py",
        "        if code == ResponseCode.FLUSH_SLAVE_TIMEOUT:\n            waiting.is_unconfirmed =",
        "        if code == ResponseCode.FLUSH_SLAVE_TIMEOUT:\n            _ =",
    ),
    Planted(
        "a slave acknowledges data that is not on its disk",
        "replication/slave.py",
        "return self._store.flushed_offset if self._store.config.flush_disk_type == SYNC_FLUSH else None",
        "return None",
    ),
    Planted(
        "a slave accepts damaged frames",
        "replication/frames.py",
        "if crc32(body, crc32(frame[:HEADER_SIZE])) != crc:",
        "if False:",
    ),
    Planted(
        "a slave has no consumer offsets",
        "broker/slave/metadata_sync.py",
        "            self._copy_offsets,\n",
        "",
    ),
    # Clocks, and what is done once.
    Planted(
        "a clock that was ahead blocks a delay level",
        "broker/delay/levels.py",
        "return now_ms if record.store_timestamp > now_ms else record.store_timestamp + delay_ms",
        "return record.store_timestamp + delay_ms",
        "never had",
    ),
    Planted(
        "a new master delivers timed messages again",
        "broker/delay/timer_progress.py",
        "        if last is not None:\n",
        "        if False:\n",
        "was delivered at",
    ),
    Planted(
        "a new master delivers all delayed messages again",
        "broker/delay/delivery_journal.py",
        "if unit is None or unit[0] < store.min_physical_offset:",
        "if True:",
        "was delivered at",
    ),
    Planted(
        "a transaction can end twice",
        "broker/transaction/transactions.py",
        "        if self.check.is_over(record.queue_offset, first):\n",
        "        if False:\n",
        "which was rolled back",
    ),
    # Topics and groups that begin anew.
    Planted(
        "a reset keeps popped messages in flight",
        "broker/pop/service.py",
        "self._offsets_reset(topic, group, offsets.keys())",
        "None",
        "not once more",
    ),
    Planted(
        "consumers keep the offsets of a recreated topic",
        "broker/tables/consumer_offsets.py",
        "return self._table.discards.deleted_topics.get(topic, 0)",
        "return 0",
        "never had",
    ),
    Planted(
        "delayed messages of a deleted topic go to the new one",
        "broker/tables/discards.py",
        "return log_offset < self.deleted_topics.get(topic, 0)",
        "return False",
        "from the next one",
    ),
    # Lite topics.
    Planted(
        "a lite topic is popped while its messages are in flight",
        "broker/lite/pops.py",
        "if self._orderly.is_blocked(",
        "if not self._store and self._orderly.is_blocked(",
        "agents",
    ),
    Planted(
        "a consumer repeats no lite topics",
        "client/popping/lite_subscription_manager.py",
        "LiteSubscriptionAction.COMPLETE_ADD, self._lite_topics)",
        "LiteSubscriptionAction.COMPLETE_ADD, ())",
        "never had",
    ),
    Planted(
        "a pop of a lite topic skips a message",
        "broker/lite/pops.py",
        "offset = self._position(queue, group)",
        "offset = self._position(queue, group) + 1",
        "which is earlier in",
    ),
    # Priorities, rate limits, retention of topics.
    Planted(
        "a pop reads the lowest priority first",
        "broker/pop/dispatcher.py",
        "            is_descending = self._config.priority_order_asc\n",
        "",
        "which waited and has a higher priority",
    ),
    Planted(
        "a priority above the last queue is unlimited",
        "broker/send/queues.py",
        "max(min(priority, last), 0)",
        "priority % (last + 1)",
        "its priority belongs to queue",
    ),
    Planted(
        "sends do not count for the rate limit",
        "broker/tables/rate_limits.py",
        "                one.take(messages, len(body))",
        "                pass",
        "exceeded the limit of tickets",
    ),
    Planted(
        "deliveries do not count for the rate limit",
        "broker/tables/rate_limits.py",
        "            limit.take(messages, size)",
        "            pass",
        "exceeded the limit of",
    ),
    Planted(
        "a client does not wait for a rate limit",
        "client/producing/sender.py",
        "    if clock.monotonic() + wait_s + MIN_TRY_MS / 1000 > deadline:",
        "    if True:",
        "without a fault",
    ),
    Planted(
        "a restarted broker shows expired messages",
        "broker/admin/store.py",
        "self._store.apply_topic_retention(now_ms())",
        "now_ms()",
        "begins at 0",
    ),
    Planted(
        "messages expire too early",
        "store/topic_retention.py",
        "now_ms - limits.max_age_ms, first",
        "now_ms - limits.max_age_ms // 2, first",
        "which has not expired",
    ),
    Planted(
        "the size of a queue is half of its retention",
        "store/topic_retention.py",
        "self._count(queue, limits.max_bytes)",
        "self._count(queue, limits.max_bytes // 2)",
        "bytes from",
    ),
    Planted(
        "a pull before the begin of a queue continues at its end",
        "store/message_store.py",
        "result.status, result.next_begin_offset = GetStatus.OFFSET_TOO_SMALL, min_offset",
        "result.status, result.next_begin_offset = GetStatus.OFFSET_TOO_SMALL, max_offset",
        "continued at",
    ),
    # Filters, permissions, proxies, exactly-once writers.
    Planted(
        "messages of a SQL92 group are not filtered",
        "broker/tables/message_filters.py",
        "        return self._sql_filter(name, topic, self._compiled(name, subscription, version))",
        "        return MessageFilter()",
        "which its filter excludes",
    ),
    Planted(
        "a compressed body is not marked",
        "client/producing/message_encoder.py",
        "sys_flag=encoded.sys_flag | compression_flag(self._compression)",
        "sys_flag=encoded.sys_flag",
        "other bytes than",
    ),
    Planted(
        "signatures are not checked",
        "auth/user_access.py",
        '        if problem is not None:\n            raise _refused(f"check signature',
        '        if False:\n            raise _refused(f"check signature',
        "without a permission",
    ),
    Planted(
        "a user may use every topic",
        "auth/user_access.py",
        "        if entry is not None and entry.decision is Decision.ALLOW:",
        "        if True:",
        "without a permission",
    ),
    Planted(
        "a proxy acknowledges no message",
        "proxy/consumer/acks.py",
        "                await self._requests.ack(handle, group, topic)",
        "                pass",
        "more than once",
    ),
    Planted(
        "a broker stores repeated rows",
        "broker/send/idempotent_writes.py",
        "known = 0 if written is None else count_known(written, first, last, after, batch)",
        "known = 0",
        "is stored 2 times",
    ),
    # Controller mode.
    Planted(
        "a broker outside the in-sync set is elected",
        "controller/replicas.py",
        "        if unclean:\n",
        "        if True:\n",
    ),
    Planted(
        "a master changes the in-sync set alone",
        "broker/replication/sync_state_set.py",
        "        self._set_asked(self._asked | wanted)",
        "        self.members = wanted\n        self._set_asked(wanted)",
    ),
    Planted(
        "sends do not wait for a slave that joins the set",
        "broker/replication/sync_state_set.py",
        "self._others = (self.members | asked) - {self._own_id}",
        "self._others = self.members - {self._own_id}",
    ),
    Planted(
        "minInSyncReplicas is ignored",
        "broker/replication/required_replicas.py",
        "if in_sync < config.min_in_sync_replicas:",
        "if False:",
    ),
    Planted(
        "messages are visible before all in-sync replicas have them",
        "broker/controller/confirmed_messages.py",
        "self._store.set_confirm_offset(None if is_alone else self._confirmed)",
        "self._store.set_confirm_offset(None)",
    ),
    Planted(
        "a slave keeps the records of a deposed master",
        "replication/autoswitch_link.py",
        "self._cut(Epochs(master.epochs))",
        "store.max_physical_offset",
    ),
    Planted(
        "an unsaved change is confirmed",
        "controller/leadership.py",
        "        if not is_kept:\n",
        "        if False:\n",
    ),
    Planted(
        "a new leader continues with its old state",
        "controller/leadership.py",
        "self._elected(await self._store.load())",
        "sets = await self._store.load()\n        if self._other is None:\n            self._elected(sets)",
    ),
    Planted(
        "an epoch is not saved",
        "replication/epoch_file.py",
        "replace_file(self._path, self.epochs.encode().encode())",
        "self._path",
    ),
    Planted(
        "an acting master delivers nothing",
        "broker/acting/acting_master.py",
        "            await self._role_changes.stand_in()\n",
        "            pass\n",
    ),
    # Fencing.
    Planted(
        "an older epoch is accepted",
        "broker/controller/roles.py",
        "if state.epoch < now.epoch or self.is_too_old(state):",
        "if False:",
    ),
    Planted(
        "a deposed master is followed",
        "replication/autoswitch_link.py",
        "if last is not None and master.last_epoch < last.number:",
        "if False:",
    ),
    Planted("a lease never expires", "broker/controller/lease.py", "return now >= self.until", "return False"),
    Planted(
        "a deposed master accepts messages",
        "broker/controller/replicas_manager.py",
        'self._refuse("another broker is master")',
        "self._refuse(None)",
    ),
    Planted(
        "consumers use the route of a NameServer that has just started",
        "protocol/awaited_brokers.py",
        'return frozenset(filter(None, awaited.split(";"))) if is_young else frozenset()',
        "return frozenset()",
        "read queue",
    ),
    Planted(
        "a NameServer that has just started waits for no broker",
        "namesrv/known_brokers.py",
        "is_awaited=broker.lost_time is None",
        "is_awaited=False",
        "read queue",
    ),
    Planted(
        "a slave keeps the queues of a deleted topic",
        "broker/slave/metadata_sync.py",
        "if self._deleted.get(topic) != at})",
        "if False})",
        "differ in site",
    ),
    Planted(
        "deduplication ids are not read from the log",
        "broker/send/deduplication.py",
        "if first is None or record.store_timestamp - first.at_ms >= window_ms:",
        "if False:",
        "twice within its window",
    ),
    Planted(
        "a consumer keeps its offset after a crash lost the end of a queue",
        "client/consuming/queue_puller.py",
        "return has_crashed and process_queue.next_offset > result.recovered_end",
        "return False",
    ),
    # Compaction topics.
    Planted(
        "a compaction removes the last message of a key",
        "store/compaction/compactor.py",
        "if self._last.get(digest, -1) > unit.queue_offset:",
        "if self._last.get(digest, -1) >= unit.queue_offset:",
        "although key-",
    ),
    Planted(
        "a removed tombstone brings back the value of its key",
        "store/compaction/compactor.py",
        "digest, _ = _digest_and_body(data)\n                    if",
        "digest, has_body = _digest_and_body(data)\n                    if not has_body:\n"
        "                        continue\n                    if",
        "although key-",
    ),
    Planted(
        "a read of compacted messages skips one",
        "store/compaction/compaction_log.py",
        "result.next_begin_offset = unit.queue_offset + 1",
        "result.next_begin_offset = unit.queue_offset + 2",
        "although key-",
    ),
    Planted(
        "the files of a compaction are not synced",
        "store/compaction/compactor.py",
        "        for segment in self._new:\n            segment.sync()\n",
        "",
    ),
)


def patched(bug: Planted) -> str:
    """Returns the text of the file with the bug. Raises ValueError if `old` does not occur once."""
    text = (_PACKAGE / bug.file).read_text()
    if text.count(bug.old) != 1:
        raise ValueError(f"{bug.name}: {bug.file} has its place {text.count(bug.old)} times")
    return text.replace(bug.old, bug.new)


def plant(bug: Planted, directory: Path) -> None:
    """Copies the package into a directory and plants the bug in the copy.

    The bytecode is copied, too: without it, each process compiles the package, which takes longer than a run. Python
    compiles the changed file anyway, because its modification time differs.
    """
    text = patched(bug)
    # Other processes may be writing bytecode, at first into temporary files.
    shutil.copytree(_PACKAGE, directory / "gantrymq", ignore=shutil.ignore_patterns("*.pyc.*"))
    (directory / "gantrymq" / bug.file).write_text(text)


def find(bug: Planted, seeds: int, jobs: int) -> tuple[int | None, float]:
    """Returns the first seed that fails because of the bug, or None, and the duration in seconds."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        plant(bug, Path(directory))
        command = [sys.executable, "-m", "sim", "--seeds", str(seeds), "--jobs", str(jobs), "--first"]
        root = Path(__file__).parent.parent
        found = subprocess.run(
            command, cwd=root, env=os.environ | {"PYTHONPATH": directory}, capture_output=True, text=True, check=False
        )
    seed = None
    for line in found.stdout.splitlines():
        if line.startswith("seed "):
            seed = int(line.split()[1].rstrip(":"))
        elif line.startswith("  ") and bug.says in line:
            return seed, time.perf_counter() - began
    return None, time.perf_counter() - began


def find_all(seeds: int, jobs: int, words: str = "") -> dict[str, int | None]:
    """Prints a table of the bugs with `words` in their names. Returns the first seed that finds each; None if none."""
    found: dict[str, int | None] = {}
    for bug in (bug for bug in BUGS if words in bug.name):
        seed, took_s = find(bug, seeds, jobs)
        found[bug.name] = seed
        where = f"seed {seed}" if seed is not None else f"NOT FOUND in {seeds}, or another problem came first"
        print(f"| {bug.name} | {where} | {took_s:.0f} s |", flush=True)
    return found
