"""What is wrong with a proxy, as its clients see it: the library behind `gantry doctor --proxy`.

`proxy_client.py` makes calls as Apache's clients do, `observation.py` makes those that say most and writes down what
came, `diagnosis.py` says what follows from it. Open `diagnosis.py` first.
"""
