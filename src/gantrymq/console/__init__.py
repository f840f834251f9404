"""The web console for a cluster: `gantry console`.

Start with `pages.py`. Each page is a query: a function that gets typed arguments and a user's view of the cluster
(`cluster_view`), and returns a plain structure. `app` serves each page as HTML and as JSON. `queries` contains the
pages, and `changes` the forms. `listing` searches and sorts lists and divides them into pages. `server` runs the
application with the options of `settings`.

The console caches responses of brokers for seconds and stores no state of the cluster. If a broker does not respond,
the page names the broker.
"""
