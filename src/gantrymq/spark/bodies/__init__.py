"""Bodies as a column `value`: what the option bodyFormat means. Nothing here asks a broker.

`body_format.py` has the options and the column's type; open it first. `decoding.py` makes an Arrow array of many bodies
and tells which ones can't be read; the others are one format each.
"""
