"""Support for clients of the remoting protocol: the proxy forwards their requests to brokers unchanged.

Requests of brokers are forwarded to the clients in the same way. Start with `server.py`: it serves the port and routes
each request. `link.py` is one client with its connections to brokers. `request_target.py` finds the broker of a
request.
"""
