"""`gantry pipeline`: projects of Spark Declarative Pipelines whose source and sink are topics.

- `template` has the files of a new project.
- `project` creates a project, or a program from the examples.
- `run` runs a project, on an existing cluster or on its own. Only this module imports pyspark.
- `spark_log` keeps the log of Spark in a file of the project.
"""
