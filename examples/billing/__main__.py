"""Serve it: ``make example-billing``. ``python -m examples.billing worker`` runs its jobs in another process."""

import argparse
import os
import sys
from pathlib import Path

import uvicorn

from callgate import Gate
from callgate.runtime.commands import worker
from examples.approval_desk.keys import signing_keys
from examples.billing.service import make_app, make_gate

FOLDER = Path("build/billing")
TRY = """\
curl -H 'Authorization: Bearer token-of-ann' http://127.0.0.1:{port}/invoices
curl -H 'Authorization: Bearer token-of-ann' -H 'Content-Type: application/json' \
-d '{{"invoice_id": "I-1002", "cents": 20000}}' http://127.0.0.1:{port}/agent/tools/refund_invoice
curl -H 'Authorization: Bearer token-of-lea' http://127.0.0.1:{port}/approvals
curl -H 'Authorization: Bearer token-of-ann' -X POST http://127.0.0.1:{port}/invoices/I-1003/reminders/first"""


def gate(workers: int = 0) -> Gate:
    FOLDER.mkdir(parents=True, exist_ok=True)
    database = os.environ.get("BILLING_DATABASE", f"sqlite:///{FOLDER}/billing.db")
    return make_gate(database, signing_keys(FOLDER, os.environ), workers=workers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="billing")
    parser.add_argument("command", nargs="?", choices=["serve", "worker"], default="serve")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="jobs at a time in this process; default 4")
    parser.add_argument("--spans", action="store_true", help="print OpenTelemetry spans to stderr")
    options = parser.parse_args()
    if options.spans:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider, export

        trace.set_tracer_provider(provider := TracerProvider())
        provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter(out=sys.stderr)))
    if options.command == "worker":
        sys.exit(worker.main(["--app", "examples.billing.__main__:gate", "--concurrency", str(options.jobs)]))
    print(TRY.format(port=options.port), flush=True)
    uvicorn.run(make_app(gate(options.jobs)), port=options.port, timeout_graceful_shutdown=10)
