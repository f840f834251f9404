"""The log's way from a master to its slaves, byte for byte, as Java's `DefaultHAService` does it.

`frames` has what goes over a connection, `slaves` what a master knows of those who follow it, `link` what one
connection of a slave has come to, `flow_control` how fast a master sends: plain classes that are told the time.
`connection`, `master` and `slave` are the shells with sockets. What a broker makes of it (roles, answers that wait for
slaves, tables that a slave copies) is not here. Open `link.py` first.
"""
