"""`gantry demo`: a year of New York's flights through a cluster and Spark, every figure checked against the source.

`run` is the story from start to end, `stream` its running part: `produce` sends what `flights` reads, `pipeline` is the
Spark query in the session of `spark_session`, `collect` reads its results back. `state` is the directory in which an
interrupted run is taken up again; `check` compares, `display` and `chart` show.
Open `run.py` first.
"""
