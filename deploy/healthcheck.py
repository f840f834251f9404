"""The health check of the container image: sends an HTTP request to the server in this container.

The port is GANTRY_HEALTH_PORT, by default 9100: the `metricsPort` of a NameServer, broker or controller. Any response
counts, so the check also works with the console's port. The event loop of the server sends it, unlike the response to
a TCP connection, which the kernel sends.
"""

from __future__ import annotations

import os
import sys
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

TIMEOUT_S = 4.0


def main() -> int:
    url = f"http://127.0.0.1:{os.environ.get('GANTRY_HEALTH_PORT', '9100')}/metrics"
    try:
        # Without the proxy of http_proxy: it cannot reach this container's loopback address.
        with build_opener(ProxyHandler({})).open(url, timeout=TIMEOUT_S):
            return 0
    except HTTPError:
        return 0
    except OSError as e:
        print(f"{url}: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
