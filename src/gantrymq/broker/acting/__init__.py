"""A slave that stands in for a master that is gone (`enableSlaveActingMaster`), and a master that comes back to one.

The slave with the lowest id delivers what was delayed or popped, and has other brokers ask about open transactions. Its
log stays a copy, so all of that goes to brokers of other names. `members` asks NameServers who is there, `outgoing`
says what a waiting message becomes elsewhere, `escaping` sends it there, `returning` has a master take over how far its
slave has got. Open `acting.py` first.
"""
