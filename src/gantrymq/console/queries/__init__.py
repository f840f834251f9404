"""What the pages ask for: one module a page or a few that belong together. `all_pages.py` lists them."""
