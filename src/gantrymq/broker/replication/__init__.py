"""Copies of the log at other brokers: a master's promises to producers, and what a slave takes from its master.

`promises` says how many replicas a message needs, `slave_waits` who waits for them (`flush_waits`, one package up,
joins that with waiting for the disk). At a slave `metadata_sync` copies the tables, `following` knows the master,
`refusals` and `slave_reads` say what it answers. The log itself is moved by `gantrymq.replication`.
Open `replicating.py` first.
"""
