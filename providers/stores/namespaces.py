"""The names of namespaces in tables that many applications share, and whose keys have no column for a namespace.

A name of a namespace begins with a control character, which namespaces and other names do not contain. The default
namespace keeps its names as they are, so that rows of earlier versions stay valid.
"""

from __future__ import annotations

MARK = "\x1f"
"""The first character of a name in a namespace."""
_AFTER = "\x20"
"""The character after the mark."""
_LAST = chr(0x10FFFF)


def in_table(namespace: str, name: str) -> str:
    """Return the name that a table has for the name of a tenant or a segment in a namespace."""
    if not namespace and not name.startswith(MARK):
        return name
    return f"{MARK}{namespace}{MARK}{name}"


def from_table(namespace: str, name: str) -> str:
    """Return the name that ``in_table`` was given."""
    return name[len(namespace) + 2 :] if name.startswith(MARK) else name


def condition_of(namespace: str) -> tuple[str, dict[str, str]]:
    """Return the condition of rows whose ``tenant`` is in a namespace, with its values."""
    head = in_table(namespace, "")
    if head:
        return f"substr(tenant, 1, {len(head)}) = :head", {"head": head}
    return "substr(tenant, 1, 1) <> :head", {"head": MARK}


def range_of(namespace: str) -> tuple[str, str]:
    """Return the first name that a table has in a namespace, and the first one after it, by code point."""
    if not namespace:
        return f"{MARK}{_LAST}", _LAST
    return f"{MARK}{namespace}{MARK}", f"{MARK}{namespace}{_AFTER}"
