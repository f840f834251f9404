"""Controller mode: a broker whose controller says whether it is the master of its name, or whom it follows.

`roles` says what the broker is to be by what the controller told, `in_sync` who must have a message before it is
acknowledged, `lease` until when a master may take messages: plain classes that are told the time. `identity` is the
broker's id on the disk, `controllers` what is asked of controllers. Open `controlled.py` first.
"""
