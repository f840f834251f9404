"""Replication of the commit log from a master to its slaves, byte for byte (`DefaultHAService`).

- Start with `link`: the slave's side of one connection, without a socket. `log_transfer` is the master's side.
- `frames` and `autoswitch_frames` encode the messages. `slaves` is the master's table of its slaves.
- `connection`, `master`, `slave` and `slave_connection` add sockets and timers.
- All classes without sockets get the time as an argument.

Broker roles, sends that wait for slaves, and metadata that a slave copies are in the `broker` package.
"""
