"""What the package needs of the system it runs on, one narrow module each.

`clock` tells the time, `randomness` draws lots, `files` has the functions of `os` for files, `network` finds places to
listen at, `threads` does work beside the event loop. Connections and timers come from asyncio's loop. Everything else
uses these instead of the standard library's modules, so that a simulator can put its own in their place before the rest
is imported; here they are the standard library's own functions, and cost nothing.
"""
