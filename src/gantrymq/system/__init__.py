"""Access to the operating system, in small modules: `clock`, `randomness`, `files`, `network`, `threads`, `tls`.

The rest of the package uses these modules instead of the standard library's. A simulator can therefore replace them
before it imports the rest. By default, the functions are the standard library's own, so they add no overhead.
Connections and timers come from asyncio's event loop.
"""
