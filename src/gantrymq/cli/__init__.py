"""The command `gantry`.

- Open `main.py` first: it selects the command and handles its errors.
- `app` lists all commands, and imports only the one that is run (`lazy`), so that `gantry --help` is fast.
- `servers` runs the four servers. The start of a server takes as long as its imports. typer and rich take longer to
  import than a broker, so this path does not use them. `server_options` has the options for both paths.
- `options` has the options that several commands share, and selects the cluster of a command.
"""
