"""The queries of the pages: one module for each page or for a few related pages. `all_pages.py` lists them."""
