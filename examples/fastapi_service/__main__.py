"""Serve it: ``make example-fastapi``."""

from __future__ import annotations

import argparse

import uvicorn

parser = argparse.ArgumentParser(prog="fastapi_service")
parser.add_argument("--port", type=int, default=8001)
uvicorn.run("examples.fastapi_service.app:app", port=parser.parse_args().port, timeout_graceful_shutdown=10)
