"""The command `gantry`.

`main` finds the command. `app` lists all of them and imports the one that is run (`lazy`), so that `gantry --help` is
there at once. `servers` runs `namesrv` and `broker`: a server is up in the time that Python needs to import it, so it
does without typer and rich, which cost more than a broker does; `server_options` has what both ways know.
`options` are those that several commands share, and `contexts` say where a command goes. Open `main.py` first.
"""
