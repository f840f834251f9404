"""SQL92 filters: conditions on message properties, as an alternative to tags.

`sql` has `compile_sql`, the grammar and its limits; read it first. `expression` checks the parts of an expression and
builds a program from them. `program` runs it on the property bytes of a message. `values` has Java's types, conversions
and order. The broker's use of filters is in `broker.message_filter`.
"""
