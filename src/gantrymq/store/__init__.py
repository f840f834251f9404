"""The broker's files, in RocketMQ's own layout: a Java broker can go on where we stopped, and the other way round.

One commit log holds every message record (`commit_log`); per queue a file of 20-byte units points into it
(`consume_queue`); `message_writer` writes both, `collect` goes from units to records, `key_lookup` from keys through
`message_index` (its entries: `index_entries`). `message_store` puts them together, `recovery` makes them agree when a
store is opened, `flusher` has the threads that call fdatasync, `retention` says which files may go. `replica` takes
what a slave gets of its master's log. `offline`, `verify`, `dump` and `rebuild` work on a store that nobody has opened.
`json_config` reads and writes the broker's configuration files.
No network and no event loop here: one thread calls the store, and callbacks come from the flusher's thread.
Open `message_store.py` first.
"""
