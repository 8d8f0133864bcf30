r"""Tolerant parsing: named, purely lexical readings of almost-JSON.

``tolerate`` re-spells a text once and names the applied rules. The caller parses the new spelling strictly, within the
same limits. Tolerance never closes, drops, reorders or invents a token that carries data. It never cuts the end of a
text, except whole chat tokens such as ``<|im_end|>``. It returns None where two readings are possible.

================== ===================================================================================================
rule               reads
================== ===================================================================================================
``bom``            a byte order mark before the text
``special-token``  whole chat tokens ``<|name|>`` after the text
``fence``          a Markdown fence, opened and closed, around the whole text
``empty``          no text at all, as ``{}``; the schema then validates it
``double-encoded`` the whole text is a JSON string that holds the object
``control-chars``  raw newline, carriage return or tab in a string
``python-literal`` strings in single quotes, Python's ``\x`` and ``\U`` escapes; ``True``, ``False``, ``None``
``trailing-comma`` one comma between the last value and its closing bracket
================== ===================================================================================================

Its time is linear in the length of the text, because an attacker may choose it.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

RULES = (
    "bom",
    "special-token",
    "fence",
    "empty",
    "double-encoded",
    "control-chars",
    "python-literal",
    "trailing-comma",
)

_SPACE = " \t\r\n"  # JSON's white space only: any other would be dropped without a rule's name
_NAME = re.compile(r"[a-z_]{2,24}")
_FENCE = re.compile(r"```[A-Za-z0-9_+-]{0,24}[ \t]{0,24}\r?\n")

# Possessive quantifiers never backtrack, so the time is linear. A quote without an end is a token of its own.
_TOKEN = re.compile(
    r"""
      (?P<double> "[^"\\]*+(?:\\.[^"\\]*+)*+" )
    | (?P<single> '[^'\\]*+(?:\\.[^'\\]*+)*+' )
    | (?P<open>   ["'] )
    | (?P<word>   [A-Za-z_][A-Za-z_0-9]*+ )
    | (?P<comma>  ,[ \t\r\n]*+(?=[}\]]) )
    | (?P<other>  ,|[^"'A-Za-z_,]++ )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|.)"
_DOUBLE_SPECIAL = re.compile(r"[\n\r\t]|" + _ESCAPE, re.DOTALL)
_SINGLE_SPECIAL = re.compile(r'["\n\r\t]|' + _ESCAPE, re.DOTALL)
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_RAW = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Tolerated(NamedTuple):
    """A new spelling of a text, and the names of the rules that led to it, in the order of ``RULES``."""

    text: str
    rules: tuple[str, ...]


class _Unclear(Exception):
    """There is no reading, or more than one."""


def tolerate(text: str) -> Tolerated | None:
    """Re-spell *text* once, lexically, for strict parsing; None where no rule applies."""
    rules: set[str] = set()
    body = _without_mark(text, rules)
    if not body:
        return _tolerated("{}", rules | {"empty"})
    body = _without_fence(_without_tokens(body, rules), rules)
    if body.startswith('"'):
        body = _decoded(body, rules)
    elif body:
        try:
            body = _Spelling(rules).respell(body)
        except _Unclear:
            return None
    return _tolerated(body, rules) if body and rules else None


def _tolerated(text: str, rules: set[str]) -> Tolerated:
    return Tolerated(text, tuple(rule for rule in RULES if rule in rules))


def _without_mark(text: str, rules: set[str]) -> str:
    if text.startswith("\ufeff"):
        rules.add("bom")
        text = text[1:]
    return text.strip(_SPACE)


def _without_tokens(text: str, rules: set[str]) -> str:
    """Remove whole tokens at the end; the strict parser refuses a partial token."""
    end = len(text)
    while text.endswith("|>", 0, end):
        start = text.rfind("<|", max(0, end - 28), end)
        if start < 0 or not _NAME.fullmatch(text, start + 2, end - 2):
            break
        end = start
        while end and text[end - 1] in _SPACE:
            end -= 1
    if end < len(text):
        rules.add("special-token")
    return text[:end]


def _without_fence(text: str, rules: set[str]) -> str:
    """Remove a pair of fences; a fence that is not closed may be a cut text."""
    opening = _FENCE.match(text)
    if opening is None or not text.endswith("```"):
        return text
    rules.add("fence")
    return text[opening.end() : -3].strip(_SPACE)


def _decoded(text: str, rules: set[str]) -> str:
    """Decode one level of string around an object; strings inside the object stay unchanged."""
    try:
        inner = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(inner, str) or not inner.lstrip(_SPACE).startswith("{"):
        return ""
    rules.add("double-encoded")
    return inner


class _Spelling:
    """Rewrite Python's spelling as JSON, token by token. Raises ``_Unclear``."""

    __slots__ = ("escaped_slash", "python_escape", "quoted", "rules")

    def __init__(self, rules: set[str]) -> None:
        self.rules = rules
        self.escaped_slash = False  # `\/` in double quotes: a slash to JSON, two characters to Python
        self.python_escape = False  # `\x41` in double quotes: nothing to JSON
        self.quoted = False

    def respell(self, text: str) -> str:
        parts: list[str] = []
        last = ""  # last character that is not white space
        for token in _TOKEN.finditer(text):
            kind, part = token.lastgroup, token.group()
            if kind == "open":
                raise _Unclear
            if kind == "comma" and last not in "{[:,":
                self.rules.add("trailing-comma")
                part = part[1:]
            elif kind == "double":
                part = self._double(part)
            elif kind == "single":
                part = self._single(part)
            elif kind == "word":
                part = self._word(part)
            parts.append(part)
            shown = part.rstrip(_SPACE)
            if shown:
                last = shown[-1]
        if (self.python_escape and not self.quoted) or (self.escaped_slash and "python-literal" in self.rules):
            raise _Unclear
        return "".join(parts)

    def _word(self, word: str) -> str:
        if word not in _LITERALS:
            return word
        self.rules.add("python-literal")
        return _LITERALS[word]

    def _double(self, token: str) -> str:
        return '"' + _DOUBLE_SPECIAL.sub(self._in_double, token[1:-1]) + '"'

    def _single(self, token: str) -> str:
        self.quoted = True
        self.rules.add("python-literal")
        return '"' + _SINGLE_SPECIAL.sub(self._in_single, token[1:-1]) + '"'

    def _in_double(self, found: re.Match[str]) -> str:
        """Keep unknown escapes for the strict parser to refuse, except those that only Python writes in double quotes."""
        special = found.group()
        if special in _RAW:
            return self._raw(special)
        if len(special) > 2:
            self.python_escape = True
            return _code_point(special)
        self.escaped_slash = self.escaped_slash or special == "\\/"
        return special

    def _in_single(self, found: re.Match[str]) -> str:
        special = found.group()
        if special in _RAW:
            return self._raw(special)
        if special in {'"', '\\"'}:
            return '\\"'
        if special == "\\'":
            return "'"
        if len(special) > 2:
            return _code_point(special)
        if special[1] in "\\nrtbfu":  # the same to both; the strict parser checks what follows \u
            return special
        raise _Unclear

    def _raw(self, character: str) -> str:
        self.rules.add("control-chars")
        return _RAW[character]


def _code_point(escape: str) -> str:
    r"""``\x41`` or ``\U0001f600`` as JSON writes it."""
    code = int.from_bytes(bytes.fromhex(escape[2:]))
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise _Unclear
    return json.dumps(chr(code))[1:-1]
