"""Serve it with threads: ``make example-django``. Behind a real server: ``gunicorn examples.django_service.wsgi``."""

from __future__ import annotations

import argparse
import signal
import sys
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

from examples.django_service.wsgi import application

served: Any = application


class Threaded(ThreadingMixIn, WSGIServer):
    """A server with one daemon thread per request."""

    daemon_threads = True


parser = argparse.ArgumentParser(prog="django_service")
parser.add_argument("--port", type=int, default=8002)
with make_server("127.0.0.1", parser.parse_args().port, served, Threaded) as server:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"serving on http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
