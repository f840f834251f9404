"""Light queues (LMQ): queues with units in a database instead of files, so that a broker can have a million of them.

- `light_queues` has all light queues of a store: it dispatches messages to them, and follows the log after a crash.
- `light_queue` is one of them, with the interface of a `ConsumeQueue`.
- `unit_database` has the units, in SQLite.
- `light_collect` reads the records of a light queue.

Start with `light_queues.py`. Decision record: docs/decisions/light-queues.md.
"""
