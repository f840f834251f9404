"""The command `gantry`.

`main` finds the sub-command, `servers` has `namesrv` and `broker`, `app` the others. A server is up in the time that
Python needs to import it, so `servers` does without typer and rich, which cost more than a broker does.
Open `main.py` first.
"""
