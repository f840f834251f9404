"""The command `gantry`.

- Open `main.py` first: it selects the command and handles its errors.
- `app` lists all commands, and imports only the one that is run (`lazy`), so that `gantry --help` is fast.
- `servers` runs the four servers. Their start, and that of `consume`, takes as long as its imports. typer and pydantic
  take longer to import than a broker. The options of these commands are therefore data, with a fast parser
  (`plain_options`). typer has the same options for help and errors.
- `options` has the options that several commands share. `target` selects the cluster of a command.
"""
