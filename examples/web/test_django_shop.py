"""Tests that the view sends an order to a broker, and that the process of a server exits."""

import json
import os
import subprocess
import sys
from pathlib import Path

from received import received

from gantrymq.testing.embedded import EmbeddedCluster

#: A process of Django that handles one request and exits. Its producer starts with the request.
ONE_REQUEST = """
import django
django.setup()
from django.test import Client
response = Client().post("/orders", '{"id": "order-17", "what": "apples"}', content_type="application/json")
print(response.status_code, response.json())
"""


def test_an_order_is_sent(gantry_cluster: EmbeddedCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ONE_REQUEST],
        cwd=Path(__file__).parent,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "django_shop.settings", "NAMESRV_ADDR": gantry_cluster.name_server},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    message = received(gantry_cluster.name_server, "web-orders")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"202 {{'message': '{message.msg_id}'}}\n", "")
    assert (message.keys, json.loads(message.body)["what"]) == (["order-17"], "apples")
