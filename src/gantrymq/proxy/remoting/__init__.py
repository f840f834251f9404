"""Support for clients of the remoting protocol: the proxy forwards their requests to brokers unchanged.

In the same way, it forwards brokers' requests to clients. Start with `server.py`, which serves the port and routes each
request. `link.py` is one client with its connections to brokers. `request_target.py` finds the broker of a request.
"""
