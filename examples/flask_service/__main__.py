"""Serve it with threads: ``make example-flask``."""

from __future__ import annotations

import argparse
import signal
import sys

from werkzeug.serving import make_server

from examples.flask_service.app import app, tools

parser = argparse.ArgumentParser(prog="flask_service")
parser.add_argument("--port", type=int, default=8003)
server = make_server("127.0.0.1", parser.parse_args().port, app, threaded=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with tools:
    print(f"serving on http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
