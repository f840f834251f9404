"""Changes through forms: one module for each kind of object. `all_changes.py` lists them."""
