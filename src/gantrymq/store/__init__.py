"""The broker's files, in RocketMQ's own format. Java's broker and GantryMQ can open each other's stores.

- `commit_log` stores every message record in one log. `consume_queue` has one file of 20-byte units for each queue; a
  unit points into the log. `message_writer` writes both.
- `collect` reads the records of units. `key_lookup` finds records by key, through `message_index` and `index_entries`.
- `message_store` combines these parts. `recovery` makes the files consistent when a store is opened.
- `flusher` has the threads that call fdatasync. `retention` decides which files expire.
- `replica` writes a slave's copy of its master's log.
- `offline`, `verify`, `dump` and `rebuild` work on a store that is not open.
- `json_config` reads and writes the broker's configuration files.

The package uses neither the network nor an event loop. One thread calls the store; callbacks run in the flusher's
thread. Start with `message_store.py`.
"""
