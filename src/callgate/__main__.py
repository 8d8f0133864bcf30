"""``python -m callgate``: the version, a short help, and the commands."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version

HELP = """\
Callgate {version}: the one gate every tool call passes.

  from callgate import Gate, tool     declare tools, open a gate, make calls
  python -m examples.order_desk       a worked example (in a checkout: make run)
  python -m callgate pick "a request" --catalog FILE   pick the tools of a catalogue that fit a request
  python -m callgate audit verify ADDRESS   find changes to the audit record of a store; also export, prune
  python -m callgate effects list ADDRESS   list the effect ledger of a store; also show, settle, prune
  python -m callgate jobs list ADDRESS      list the submitted jobs; also show, retry, cancel, prune
  python -m callgate stores check --store ADDRESS     check whether the tables of a store are up to date
  python -m callgate stores upgrade --store ADDRESS   migrate the tables of a store
  python -m callgate worker --app MODULE:GATE   run the calls that were submitted to a gate
"""


COMMANDS = ("audit", "effects", "jobs", "pick", "stores", "worker")
"""Each command has a module ``callgate.runtime.commands.NAME`` with a function ``main``."""


def main() -> None:
    """Run a command, or print the version and a short help."""
    asked = sys.argv[1:2]
    if asked and asked[0] in COMMANDS:
        command = import_module(f"callgate.runtime.commands.{asked[0]}")
        sys.exit(command.main(sys.argv[2:]))
    print(HELP.format(version=version("callgate")))


if __name__ == "__main__":
    main()
