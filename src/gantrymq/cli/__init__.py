"""The command `gantry`.

- Open `main.py` first: it selects the command and handles its errors.
- `app` lists all commands, and imports only the command that is run (`lazy`), so that `gantry --help` is fast.
- `servers` runs the four servers. Imports take most of the time in which a server or `consume` starts; typer and
  pydantic take longer to import than a broker. The options of these commands are therefore data, with a fast parser
  (`plain_options`). typer gets the same options for help and errors.
- `options` has the options that several commands share. `target` selects the cluster of a command.
"""
