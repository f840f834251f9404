"""Clients that speak the remoting protocol: their requests go on to brokers as they are, and what brokers ask to them.

`server.py` first: the port, and what becomes of each request. `link.py` is one client with its connections to brokers,
`broker_of.py` finds out for which broker a request is.
"""
