"""What may be done by clicking: one module for each thing that is changed. `all_changes.py` lists them."""
