"""The console: a cluster in a browser, `gantry console`.

A page is a query: a function of what one user sees (`eye`) and of typed arguments, whose answer is a plain structure.
`pages` serves each as HTML and as JSON; `queries` has them, `listing` cuts, searches and sorts their lists. `server`
runs it, `settings` says how. Open `pages.py` first. Nothing here keeps what brokers know better; a page that some of
them didn't answer says so.
"""
