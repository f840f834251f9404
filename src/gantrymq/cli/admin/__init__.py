"""`gantry admin COMMAND`: mqadmin's commands, under its names and flags.

`command` makes a command of an async function and holds the options that all have; `output` prints what it returns, as
tables or as JSON. The commands are grouped as in mqadmin's source: `topics`, `brokers`, `groups`, `offsets`,
`messages`, `namesrv`, `stats`; `unsupported` has the names of those that are not there yet. What they do is in
`gantrymq.client.admin.client`. Open `topics.py` first.
"""
