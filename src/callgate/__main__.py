"""The command ``callgate``, also ``python -m callgate``: the version, a short help, and the commands."""

from __future__ import annotations

import io
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

HELP = """\
Callgate {version}: the one gate every tool call passes.

  from callgate import Gate, tool             declare tools, open a gate, make calls
  python -m examples.order_desk               a worked example (in a checkout: make run)

  callgate pick "a request" --catalog FILE    pick the tools of a catalogue that fit a request
  callgate audit verify ADDRESS               find changes to the audit log of a store; also export, prune
  callgate effects list ADDRESS               list the effect ledger of a store; also show, settle, prune
  callgate jobs list ADDRESS                  list the submitted jobs; also show, retry, cancel, prune
  callgate mcp MODULE:GATE                    serve a gate to an MCP host: an editor, an assistant, an agent
  callgate stores check --store ADDRESS       check whether the tables of a store are up to date
  callgate stores upgrade --store ADDRESS     create or migrate the tables of a store
  callgate worker --app MODULE:GATE           run the calls that were submitted to a gate

Only `stores upgrade` and the gates of `mcp` and `worker` create or migrate tables. The others refuse a store that is not there.
"""


COMMANDS = ("audit", "effects", "jobs", "mcp", "pick", "stores", "worker")
"""Each command has a module ``callgate.runtime.commands.NAME`` with a function ``main``."""


BROKEN_PIPE = 141
"""The exit code if the reader of the output has gone, as in ``callgate jobs list ADDRESS | head``; shells use it, too."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def main() -> None:
    """Run a command, or print the version and a short help; an unknown command exits with 2."""
    _prepare_streams()
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
    except OSError as error:  # of the output: commands report all others
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        if isinstance(error, BrokenPipeError):
            sys.exit(BROKEN_PIPE)
        sys.stderr.write(f"callgate: the output cannot be written: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _prepare_streams() -> None:
    """Replace closed streams, and escape characters that the encoding of a terminal does not have.

    It comes before the import of a command, whose defaults are these streams.
    """
    sys.stdin = sys.stdin or Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  (open until the process ends)
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  (as above)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        command = import_module(f"callgate.runtime.commands.{name}")
        sys.exit(command.main(sys.argv[2:]))
    if name in {"-h", "--help", "help", "--version"}:
        print(version("callgate") if name == "--version" else HELP.format(version=version("callgate")))
        return
    near = get_close_matches(name, COMMANDS, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    print(f"callgate: there is no command {name!r:.80}{meant}\ncommands: {', '.join(COMMANDS)}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
