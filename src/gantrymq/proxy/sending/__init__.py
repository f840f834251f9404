"""Producers' rpcs: SendMessage, EndTransaction, RecallMessage.

`send.py` first: a request's way to a broker. `outgoing.py` checks messages and makes their properties,
`queue_choice.py` says which queue, `transactions.py` remembers where halves lie until their end is told.
"""
