"""Access to the operating system, one small module each: `clock`, `randomness`, `files`, `network`, `threads`, `tls`.

The rest of the package uses these modules instead of the standard library's. So a simulator can replace them before the
rest is imported. Here they are the standard library's own functions, without overhead. Connections and timers come from
asyncio's event loop.
"""
