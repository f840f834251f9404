"""`gantry admin COMMAND`: mqadmin's commands, with its names and flags.

- Open `topics.py` first. The commands are grouped as in mqadmin's source: `topics`, `brokers`, `groups` and so on.
- `command` turns an async function into a command, and adds the options that all commands have.
- `output` prints the result of a command, as tables or as JSON.
- `catalogue` lists the commands. `unsupported` has the names of mqadmin's commands that do not exist here.
- `gantrymq.client.admin.client` implements the operations.
"""
