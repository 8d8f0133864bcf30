"""The text of an address: its scheme, and where its password ends. Errors quote nothing of it but the scheme."""

from __future__ import annotations

import re
from urllib.parse import quote

from callgate.errors import StoreError

KNOWN = "memory://, sqlite:///file.db, sqlite:// (in memory), postgresql://, redis:// and rediss://"
_ALIASES = {"postgres": "postgresql", "valkey": "redis", "valkeys": "rediss"}
"""Schemes that providers of managed databases write, and the scheme of the store."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPE = "percent-encode the user and the password: %40 for @, %2F for /, %3F for ?, %23 for #"
_AT_IN_QUERY = re.compile(r"[^/?#@:]*(?::\d*)?/[^?#@]*\?(?:[a-z_]+=[^&@]*&)*[a-z_]+=[^&@]*@[^@]*")
"""A text with an ``@`` in a value of its query, as ``host:5432/database?password=a@b`` has."""


def split_address(address: str) -> tuple[str, str]:
    """Return the scheme of an address, in lower case and by its usual name, and the text after ``://``.

    White space around the address is left out: a secret that is read from a file often ends in a newline.

    Raises:
        StoreError: the address has no scheme, or control characters within it.
    """
    scheme, found, rest = address.strip().partition("://")
    if not found or not _SCHEME.fullmatch(scheme):
        raise StoreError(f"the address of a store begins with a scheme; use one of {KNOWN}")
    if _CONTROL.search(rest):
        raise StoreError(
            "the address of a store contains a line break or another control character; write it in one line, and "
            "percent-encode control characters"
        )
    base, plus, driver = scheme.lower().partition("+")
    return f"{_ALIASES.get(base, base)}{plus}{driver}", rest


def refuse_empty(backend: str, rest: str) -> None:
    """Refuse a parameter without a value: parsers leave it out, so ``?sslmode=`` would connect without TLS.

    Args:
        backend: the kind of the store.
        rest: the text after the user and the password. Nothing of it is shown: it may be the end of a password.

    Raises:
        StoreError: there is one.
    """
    if any(part and not part.partition("=")[2] for part in rest.partition("?")[2].split("&")):
        raise StoreError(
            f"{backend}: the address has a parameter without a value, which would be ignored; write name=value or remove "
            "it, and write %3F for a ? in a name"
        )


def split_password(rest: str) -> tuple[str, str]:
    """Return the user and the password of an address, percent-encoded and with the ``@``, and the text after them.

    The password ends at the last ``@`` before the path. A password may also have unescaped ``/``, ``?`` and ``#``, but not
    together with another ``@``: then its end is not known, and a part of it would be shown as a host or a database.

    Args:
        rest: the text after ``://``.

    Raises:
        StoreError: the end of the password is not known.
    """
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    outside = rest.count("@", len(authority))
    if not outside:
        user, at, host = authority.rpartition("@")
        host += rest[len(authority) :]
    elif outside == 1 and _AT_IN_QUERY.fullmatch(rest):
        user, at, host = "", "", rest.replace("@", "%40")
    elif outside == 1 and ":" in authority and "@" not in authority:
        user, at, host = rest.partition("@")
    else:
        raise StoreError(f"the address of a store has an unescaped @ in a place that is not clear; {_ESCAPE}")
    name, colon, password = user.partition(":")
    return f"{quote(name, safe='%')}{colon}{quote(password, safe='%')}{at}", host
