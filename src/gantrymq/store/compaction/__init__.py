"""Compaction topics (`cleanup.policy=COMPACTION`): the last message of each key, in Java's files.

Messages of these topics go to the commit log and the consume queues, as all others. Then they are copied:

- `compaction_store` copies them, and has one log for each queue (`CompactionStore`, `CompactionService`).
- `compaction_log` is the log of one queue: it reads, appends and replaces records (`CompactionLog`).
- `segment` is a pair of its files: records, and a unit for each record (`SparseConsumeQueue`).
- `compactor` writes new files with the last message of each key (`CompactionLog.compaction`).

Start with `compaction_store.py`. Decision record: docs/decisions/compaction-topics.md.
"""
