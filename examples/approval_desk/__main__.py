"""Serve the desk: ``make example-approvals``. Suspended calls survive a restart, also after a crash."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import uvicorn

from examples.approval_desk.keys import VARIABLE, UnsafeKey, signing_keys
from examples.approval_desk.web import application

parser = argparse.ArgumentParser(prog="approval_desk")
parser.add_argument("--port", type=int, default=8004)
parser.add_argument("--folder", type=Path, default=Path("build/approval_desk"), help="where everything is kept")
options = parser.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)
try:
    keys = signing_keys(options.folder, os.environ)
except UnsafeKey as unsafe:
    sys.exit(f"approval_desk: {unsafe}")
if not os.environ.get(VARIABLE):
    print(f"{VARIABLE} is not set: this demonstration keeps a key of its own in {options.folder}", flush=True)
# Loopback only: users pick their name on a page, without authentication.
uvicorn.run(application(options.folder, keys), host="127.0.0.1", port=options.port, timeout_graceful_shutdown=10)
