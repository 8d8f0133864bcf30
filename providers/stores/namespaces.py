"""The names of namespaces in tables that many applications share, and whose keys have no column for a namespace.

A name of a namespace begins with a control character, which namespaces and other names do not contain. The default
namespace keeps its names as they are, so that rows of earlier versions stay valid.
"""

from __future__ import annotations

_MARK = "\x1f"
_AFTER = "\x20"
"""The character after the mark."""
_LAST = chr(0x10FFFF)


def in_table(namespace: str, name: str) -> str:
    """Return the name that a table has for the name of a tenant or a segment in a namespace."""
    if not namespace and not name.startswith(_MARK):
        return name
    return f"{_MARK}{namespace}{_MARK}{name}"


def from_table(namespace: str, name: str) -> str:
    """Return the name that ``in_table`` was given."""
    return name[len(namespace) + 2 :] if name.startswith(_MARK) else name


def range_of(namespace: str) -> tuple[str, str]:
    """Return the first name that a table has in a namespace, and the first one after it, by code point."""
    if not namespace:
        return f"{_MARK}{_LAST}", _LAST
    return f"{_MARK}{namespace}{_MARK}", f"{_MARK}{namespace}{_AFTER}"
