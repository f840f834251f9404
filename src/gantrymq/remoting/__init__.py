"""RocketMQ's RPC over TCP, on asyncio: requests, responses and one-way requests, in both directions of a connection.

- Start with `connection`: one socket, on the client's or the server's side.
- `client` keeps one connection per address. `server` accepts connections and passes requests to handlers.
- `blocking_connection` is a client's connection for one thread, without an event loop.
- A new connection passes from `listener` through `tls_detection` (TLS or plain, see `server_tls`) to a `Connection`.
- All connections of a server share limits: `incomplete_frames`, `unread_responses`, `response_tasks` and `slices`.
- `configuration` holds a server's keys. `file_changes` saves changes to them while the server runs.

Handlers are registered by request code, in other packages.
"""
