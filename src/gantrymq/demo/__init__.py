"""`gantry demo` processes a year of New York's flights with a cluster and Spark, and checks every figure of the result.

- Open `run.py` first: it runs the demo from start to end. `stream` runs the cluster, the threads and the query.
- `flights` loads the flights, and `produce` sends them to a topic.
- `pipeline` has the Spark query, and `spark_session` its session. `collect` reads the results back.
- `state` has the directory and the progress of a run, so that an interrupted run can be resumed.
- `check` compares the results with the source. `display` and `chart` show them.
"""
