"""`format("rocketmq-store")`: reads the files of a broker that isn't running. Open `datasource.py` first."""
