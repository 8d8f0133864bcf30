"""``python -m callgate``: the version and where to go next."""

from __future__ import annotations

from importlib.metadata import version

HELP = """\
Callgate {version}: the one gate every tool call passes.

  from callgate import Gate, tool     declare tools, open a gate, make calls
  python -m examples.order_desk       a worked example (in a checkout: make run)
"""


def main() -> None:
    """Print the version and a short help."""
    print(HELP.format(version=version("callgate")))


if __name__ == "__main__":
    main()
