"""SQL92 filters: what a consumer that doesn't subscribe by tags says of the messages that it wants.

`sql` has `compile_sql`, the grammar and its limits: read it first. `expression` says which parts fit together and makes
a program of them, `program` runs it over a message's property bytes; `values` has Java's types, conversions and order,
on which the outcome depends. What a broker does with filters is in `broker.message_filter`.
"""
