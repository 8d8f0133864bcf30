"""The spellings of a secret: how the encodings that programs use show it. Pure."""

from __future__ import annotations

import json
import re
import unicodedata
from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal, TypeAlias
from urllib.parse import quote

import orjson

SHORTEST_SECRET = 4
"""Minimum length of a value to search for; shorter values match unrelated text."""
LONG_SECRET = 8
"""Minimum length of a value to search for in upper and lower case, too."""

Needles: TypeAlias = tuple[tuple[bytes, tuple[bytes, ...]], ...]
"""What to search in JSON, in groups. The first of a group is a character of all its needles: most texts lack it."""

_UNQUOTED = ("", "/", "!*'()", ";,/?:@&=+$!*'()#")
"""What stays as it is in a URL: by ``quote_plus``, ``quote``, ``encodeURIComponent`` and ``encodeURI``."""
_IN_SCRIPTS = "<>&"
"""What JSON within HTML escapes: Go, Rails and others."""
_IN_SCRIPTS_TOO = "<>&'\"+`"
"""What .NET escapes."""
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]+")
_FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
_QUOTES = "'\""
"""A literal with both quotes escapes the single one."""
_MARKERS = (b"\\", b"%", b"&")


def spellings(secret: str) -> tuple[str, ...]:
    """Return a secret in plain form and as encoded in URLs, base64, hexadecimal, JSON, HTML and literals; longest first.

    A text that is longer than the secret may hold it in base64 at three offsets. Forms in the other case are for secrets
    of at least ``LONG_SECRET`` characters: those of a shorter one may be words of the text. A secret with other than ASCII
    characters is found as UTF-8 and as Latin-1, composed and decomposed.
    """
    data = secret.encode("utf-8", "surrogatepass")
    found = {secret, *_of_bytes(data), *_in_units(secret)}
    if len(secret) >= LONG_SECRET:
        found |= {secret.upper(), secret.lower()}
    if _UNRESERVED.fullmatch(secret) is None:  # most keys and tokens are the same in URLs, JSON and HTML
        composed = {secret} if secret.isascii() else {secret, *(unicodedata.normalize(to, secret) for to in _FORMS)}
        for text in composed:
            found |= {text, *_of_json(text), *_in_units(text), *_of_html(text)}
            found |= {text.replace("'", doubled) for doubled in ("''", "'\\''", "'\"'\"'")} | {text.replace('"', '""')}
            for literal in (repr, ascii):
                found |= {literal(text)[1:-1], literal(_QUOTES + text)[4:-1]}
            for data in as_bytes(text):
                found |= {*_of_bytes(data), *_of_url(data, _UNQUOTED), *_of_other_bytes(data)}
                found |= {repr(data)[2:-1], repr(_QUOTES.encode() + data)[5:-1]}
    return tuple(sorted((one for one in found if len(one) >= SHORTEST_SECRET), key=len, reverse=True))


def plain_spellings(text: str) -> list[str]:
    """Return a text in plain form and in base64: for texts that need not be secrets, and are many."""
    return [one for one in (text, *_of_base64(text.encode("utf-8", "surrogatepass"))) if len(one) >= SHORTEST_SECRET]


def escaped_spellings(text: str) -> set[str]:
    """Return a text in the other common encodings, and in the other case: of ASCII, they show an escape or hexadecimal."""
    data = text.encode("utf-8", "surrogatepass")
    cased = {text.upper(), text.lower()} if len(text) >= LONG_SECRET else set[str]()
    in_hex = {one for plain in (data.hex(), f"%{data.hex('%')}") for one in (plain, plain.upper())}
    found = {*cased, *in_hex, *_of_url(data, ("",)), _within_json(text), json.dumps(text)[1:-1]}
    return {one for one in found if len(one) >= SHORTEST_SECRET}


def as_bytes(text: str) -> set[bytes]:
    """Return a text as UTF-8, and as Latin-1 if it has no other characters."""
    found = {text.encode("utf-8", "surrogatepass")}
    if not text.isascii() and max(text) <= "\xff":
        found.add(text.encode("latin-1"))
    return found


def _of_bytes(data: bytes) -> Iterator[str]:
    yield from _of_base64(data)
    yield from _of_hex(data)
    yield f"\\x{data.hex('#')}".replace("#", "\\x")


def _of_other_bytes(data: bytes) -> Iterator[str]:
    """Return bytes as text that was read in the wrong encoding, in a mail, and in the text format of protobuf."""
    from quopri import encodestring  # few processes have secrets to look for

    for charset in ("latin-1", "cp1252"):
        yield data.decode(charset, "replace")
    yield encodestring(data).decode().replace("=\n", "")
    plain = data.decode("latin-1").replace("\\", "\\\\").replace('"', '\\"')
    for one in (plain, plain.replace("'", "\\'")):
        yield "".join(char if char.isascii() else f"\\{ord(char):03o}" for char in one)


def _of_url(data: bytes, unquoted: Iterable[str]) -> Iterator[str]:
    for safe in unquoted:
        quoted = quote(data, safe=safe)
        for one in (quoted, _escapes_in_lower_case(quoted)):
            for spaced in {one, one.replace("%20", "+")}:
                yield from (spaced, quote(spaced, safe=safe), quote(spaced, safe=""))


def _escapes_in_lower_case(text: str) -> str:
    first, *escaped = text.split("%")
    return "%".join([first, *(one[:2].lower() + one[2:] for one in escaped)])


def _of_base64(data: bytes) -> list[str]:
    whole = b2a_base64(data, newline=False).decode()
    found = [whole.rstrip("="), whole[: 8 * len(data) // 6]]
    for offset in (1, 2):  # behind so many other bytes, only some of the characters depend on *data* alone
        shown = b2a_base64(bytes(offset) + data, newline=False).decode()
        found.append(shown[offset + 1 : 8 * (offset + len(data)) // 6])
    return found + [one.replace("+", "-").replace("/", "_") for one in found if "+" in one or "/" in one]  # in a URL


def _of_hex(data: bytes) -> Iterator[str]:
    for one in (data.hex(), data.hex(" "), data.hex(":"), f"%{data.hex('%')}"):
        yield from (one, one.upper())


def _of_json(text: str) -> Iterator[str]:
    for one in {_within_json(text), json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]}:
        for escaped in ("", _IN_SCRIPTS, _IN_SCRIPTS_TOO):
            shown = one.replace('\\"', "\\u0022") if '"' in escaped else one
            for char in escaped.replace('"', ""):
                shown = shown.replace(char, f"\\u{ord(char):04x}")
            for spelled in {shown, _units_in_upper_case(shown)}:
                yield from (spelled, spelled.replace("/", "\\/"))
        yield from (_within_json(one), json.dumps(one)[1:-1])  # JSON as a text of JSON, as in a line of a log


def _in_units(text: str) -> Iterator[str]:
    """Return a text in JSON, or in the source of a program, with an escape for each UTF-16 unit."""
    units = text.encode("utf-16-be", "surrogatepass").hex("#", 2)
    for one in (units, units.upper()):
        yield "\\u" + one.replace("#", "\\u")


def _units_in_upper_case(shown: str) -> str:
    """Return JSON with the digits of its escapes in upper case."""
    first, *escaped = shown.split("\\u")
    return "\\u".join([first, *(one[:4].upper() + one[4:] for one in escaped)])


def _of_html(text: str) -> Iterator[str]:
    from html import escape  # few processes have secrets to look for

    for quotes in (
        ('"', "'"),
        ("&quot;", "'"),
        ("&quot;", "&#x27;"),
        ("&quot;", "&#39;"),
        ("&quot;", "&apos;"),
        ("&#34;", "&#39;"),
    ):
        shown = escape(text, quote=False).replace('"', quotes[0]).replace("'", quotes[1])
        yield shown
        for reference in ("&#{};", "&#x{:x};", "&#x{:X};"):  # as XML is written in ASCII
            yield "".join(char if char.isascii() else reference.format(ord(char)) for char in shown)


def _within_json(text: str) -> str:
    return orjson.dumps(text.encode("utf-8", "replace").decode()).decode()[1:-1]


def needles_of(secrets: Iterable[str]) -> Needles:
    """Return what to search for these spellings in the JSON of a value."""
    groups: dict[bytes, list[bytes]] = {}
    for needle in {_within_json(one).encode() for one in secrets}:
        marker = next((one for one in _MARKERS if one in needle), b"")
        groups.setdefault(marker, []).append(needle)
    return tuple((marker, tuple(needles)) for marker, needles in groups.items())


def holds(shown: bytes, needles: Needles) -> bool:
    """Return True if JSON has one of the needles."""
    return any(marker in shown and any(one in shown for one in group) for marker, group in needles)


@lru_cache(maxsize=64)
def spellings_of_token(token: str) -> tuple[tuple[str, ...], Needles]:
    """Return the spellings of a token, and as they are in JSON. A user makes many calls; to spell anew costs a call each."""
    spelled = spellings(token)
    return spelled, needles_of(spelled)
