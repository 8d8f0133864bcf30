"""``python -m callgate``: the version and where to go next."""

from __future__ import annotations

import sys
from importlib.metadata import version

HELP = """\
Callgate {version}: the one gate every tool call passes.

  from callgate import Gate, tool     declare tools, open a gate, make calls
  python -m examples.order_desk       a worked example (in a checkout: make run)
  python -m callgate pick "what is asked" --catalog FILE   which tools of a catalogue fit, and why
  python -m callgate audit verify ADDRESS   whether anybody changed the audit record of a store
  python -m callgate stores check --store ADDRESS     whether its tables are up to date
  python -m callgate stores upgrade --store ADDRESS   bring them up to date
"""


def main() -> None:
    """Print the version and a short help, or do what is asked."""
    if sys.argv[1:2] == ["audit"]:
        from callgate.runtime.audit_cli import main as audit

        sys.exit(audit(sys.argv[2:]))
    if sys.argv[1:2] == ["pick"]:
        from callgate.runtime.pick_cli import main as pick

        sys.exit(pick(sys.argv[2:]))
    if sys.argv[1:2] == ["stores"]:
        from callgate.runtime.stores_cli import main as stores

        sys.exit(stores(sys.argv[2:]))
    print(HELP.format(version=version("callgate")))


if __name__ == "__main__":
    main()
