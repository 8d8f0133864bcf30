"""``python -m callgate``: the version and where to go next."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version

HELP = """\
Callgate {version}: the one gate every tool call passes.

  from callgate import Gate, tool     declare tools, open a gate, make calls
  python -m examples.order_desk       a worked example (in a checkout: make run)
  python -m callgate pick "what is asked" --catalog FILE   which tools of a catalogue fit, and why
  python -m callgate audit verify ADDRESS   whether anybody changed the audit record of a store
  python -m callgate effects list ADDRESS   what is in the effect ledger of a store; also show, settle, prune
  python -m callgate jobs list ADDRESS      what was submitted to workers; also show, again, cancel, prune
  python -m callgate stores check --store ADDRESS     whether its tables are up to date
  python -m callgate stores upgrade --store ADDRESS   bring them up to date
  python -m callgate worker --app MODULE:GATE   run the calls that were submitted to a gate
"""


COMMANDS = ("audit", "effects", "jobs", "pick", "stores", "worker")
"""Each has a module ``callgate.runtime.commands.NAME`` with a ``main``."""


def main() -> None:
    """Print the version and a short help, or do what is asked."""
    asked = sys.argv[1:2]
    if asked and asked[0] in COMMANDS:
        command = import_module(f"callgate.runtime.commands.{asked[0]}")
        sys.exit(command.main(sys.argv[2:]))
    print(HELP.format(version=version("callgate")))


if __name__ == "__main__":
    main()
