"""RocketMQ's RPC over TCP, on asyncio: requests, responses, one-way calls, in both directions of a connection.

`connection` is one socket (either side), its own requests wait in `pending_requests`; `server` listens, `client` keeps
one connection per address, `tls` has the modes and certificates of both. A new connection goes from `listener` through
`arrivals` (plain or TLS, `server_tls`) to its `Connection`. What all connections of a server share is
bounded: what they hold of frames that have begun (`unfinished_frames`) and of answers that peers don't take
(`untaken_answers`), requests that tasks answer (`open_answers`), and the time of one turn of the loop (`turns`), which
`loop_watch` measures. `configuration` is a server's, changed by way of `file_changes` while it runs.
What the requests mean is not here: handlers are registered by request code.
Open `connection.py` first.
"""
