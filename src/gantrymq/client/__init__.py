"""The clients: producer; push, lite pull and simple consumer; asyncio, with a synchronous face in `gantrymq.sync`.

Open `producer.py` first. Requests to servers are in `broker_api.py`, where topics are in `routes.py`, what a client
tells its brokers in `client_instance.py`. Plain classes and functions, told all they know: `publish_info`,
`queue_selector`, `rebalance`, `process_queue`. `admin/` is for administrators, `doctor/` finds what is broken.
"""
