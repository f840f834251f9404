"""RocketMQ's RPC over TCP, on asyncio: requests, responses, one-way calls, in both directions of a connection.

`connection` is one socket (either side), `server` listens, `client` keeps one connection per address.
What the requests mean is not here: handlers are registered by request code.
Open `connection.py` first.
"""
