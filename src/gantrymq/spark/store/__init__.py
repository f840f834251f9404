"""`format("rocketmq-store")` reads the files of a broker, which need not be running. Open `datasource.py` first."""
