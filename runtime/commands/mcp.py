"""``callgate mcp MODULE:GATE``: serve a gate to an MCP host, over stdio or HTTP."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from callgate.errors import CallgateError
from callgate.runtime.commands.common import port
from callgate.runtime.commands.worker import gate_at
from callgate.runtime.hosts.mcp.face import ServedGate, server
from callgate.tools.calls import User

ABOUT = """Serve a gate to one MCP host over standard input and output, or with --http to hosts on this machine. The gate
creates or migrates the tables of its store, unless it has Options(migrate=False). Needs the extra mcp."""


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run ``callgate mcp ...``; 0: the host has closed the connection, 2: the server cannot start."""
    parser = argparse.ArgumentParser(prog="callgate mcp", description=ABOUT)
    add = parser.add_argument
    add("app", metavar="MODULE:GATE", help="the import path of the gate, such as shop.tools:gate")
    add("--name", default="", help="the name of the server for its hosts; default: the first part of the path")
    add("--user", default="local", metavar="ID", help="the user of every call; default: local")
    add("--tenant", metavar="T", help="the tenant of this user")
    add("--role", action="append", default=[], metavar="R", help="a role of this user; may be given again")
    add("--http", type=port, metavar="PORT", help="serve HTTP on 127.0.0.1 instead of stdio")
    add("--folder", metavar="DIR", help="the working directory of the gate and its module; default: the current one")
    add("--show", action="store_true", help="print what to write into the configuration of a host, and exit")
    args = parser.parse_args(arguments)
    if not args.user:
        parser.error("--user is the id of a user, not an empty text")
    name = args.name or args.app.partition(":")[0].partition(".")[0]
    try:
        if args.folder is not None:
            os.chdir(args.folder)
        if args.show:
            out.write(configuration(name, arguments, args.http))
            return 0
        gate = gate_at(args.app)
        user = User(args.user, args.tenant, roles=set(args.role))
        served = server(gate, name=name, user=user)
        if args.http is None:
            if sys.stdin.isatty():  # a person looks on; a host would only log it
                sys.stderr.write(configuration(name, arguments, None))
            asyncio.run(served.run_stdio())
        else:
            sys.stderr.write(configuration(name, arguments, args.http))
            _serve_http(served, args.http)
    except (CallgateError, OSError, ImportError, ValueError) as error:
        sys.stderr.write(f"the server cannot start: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


def configuration(name: str, arguments: Sequence[str], port: int | None) -> str:
    """Return the text that tells a person what to write into the configuration of a host.

    It names the working directory: a host starts servers in another one, where a relative path of the module, such as that
    of its database, would be another file.
    """
    if port is not None:
        url = f"http://127.0.0.1:{port}/mcp"
        entry: dict[str, object] = {"type": "http", "url": url}
        line = f"claude mcp add --transport http {shlex.quote(name)} {url}"
    else:
        args = ["-m", "callgate", "mcp", *_without_folder(arguments), "--folder", str(Path.cwd())]
        entry = {"command": sys.executable, "args": args}
        line = f"claude mcp add {shlex.quote(name)} -- {shlex.join([sys.executable, *args])}"
    return (
        f"For Claude Desktop, Cursor, Windsurf and others, add to the file of MCP servers:\n"
        f"{json.dumps({'mcpServers': {name: entry}}, indent=2)}\n\n"
        f"For VS Code, add to .vscode/mcp.json:\n{json.dumps({'servers': {name: entry}}, indent=2)}\n\n"
        f"For Claude Code, run:\n{line}\n"
    )


def _without_folder(arguments: Sequence[str]) -> list[str]:
    kept, given = list[str](), iter(arguments)
    for one in given:
        if one == "--folder":
            next(given, None)
        elif one != "--show" and not one.startswith("--folder="):
            kept.append(one)
    return kept


def _serve_http(served: ServedGate, port: int) -> None:
    import uvicorn  # comes with the SDK

    uvicorn.run(served.asgi(), host="127.0.0.1", port=port, log_level="warning")
