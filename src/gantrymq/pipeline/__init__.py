"""`gantry pipeline`: projects of Spark Declarative Pipelines whose source and sink are topics.

`template` is what a new project consists of; `project` writes one, or one of the examples as a program; `run` runs a
project, with a cluster of its own or on any.
Nothing here imports pyspark before `run` is used.
"""
