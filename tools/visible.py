"""Text from outside that a model reads and a person does not see."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_FORMATS = r"\xad\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"
_FILLERS = r"\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\U00016fe4\U0001107f\U0001d159"
_SELECTORS = r"\ufe00-\ufe0f\U000e0100-\U000e01ef"
_PRIVATE = r"\ue000-\uf8ff\U000f0000-\U0010ffff"
_NO_CHARACTERS = "\ufdd0-\ufdef" + "".join(
    f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0xF0000, 0x10000)
)
_REST = r"\u0600-\u0605\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
INVISIBLE = re.compile(f"[{_CONTROLS}{_FORMATS}{_FILLERS}{_SELECTORS}{_PRIVATE}{_NO_CHARACTERS}{_REST}]")
"""Controls but tab and line ends, what Unicode calls default-ignorable, formats, fillers that show nothing, and private
characters and code points that are none."""
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
"""Categories of which no character but the space is in a name or in a value that a model repeats."""
_RIGHT_TO_LEFT = r"\u0590-\u08ff"
_JOINING = rf"{_RIGHT_TO_LEFT}\u0900-\u0dff"
_PICTURES = r"\u00a9\u00ae\u203c\u2049\u2122-\u21ff\u2300-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_PLAIN = " \t\n\r"
_PICTURE = re.compile(f"[{_PICTURES}]")
"""Pictures of a later version of Unicode than Python's are unassigned characters for it."""
_IN_PROSE = re.compile(
    rf"(?<=[{_PICTURES}])\ufe0f|(?<=[0-9#*])\ufe0f(?=\u20e3)|"
    rf"(?<=[{_JOINING}])[\u200c\u200d]|(?<=[{_PICTURES}\ufe0f])\u200d(?=[{_PICTURES}])|"
    rf"(?<=[{_RIGHT_TO_LEFT}])[\u200e\u200f]|[\u200e\u200f](?=[{_RIGHT_TO_LEFT}])"
)
"""Marks that Persian, Arabic and emoji need: one at a time, and only where it belongs."""
_FEW, _SHARE = 4, 4
_ODD_SPACES = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
"""A prose has so many of these marks and other spaces, and one more for each four characters: more of them spell a hidden text."""


def hides_text(text: str, *, prose: bool = True) -> bool:
    """Return True if *text* has invisible characters. *prose* may have the marks that a script or an emoji needs."""
    if text.isascii() and text.isprintable():
        return False
    if not prose:
        return INVISIBLE.search(text) is not None or any(
            unicodedata.category(one) in _UNSEEN for one in text if one not in _PLAIN and not _PICTURE.match(one)
        )
    shown, marks = _IN_PROSE.subn("", text)
    marks += len(_ODD_SPACES.findall(shown))
    return marks > _FEW + len(shown) // _SHARE or INVISIBLE.search(shown) is not None


EXACT = frozenset({"enum", "const"})
"""Keywords of values that a model repeats: no mark is needed there."""


def hidden_text_in(schema: object) -> str | None:
    """Return a text or a name anywhere in a JSON Schema that has invisible characters, or None."""
    stack = [(schema, True)]
    while stack:
        item, prose = stack.pop()
        if isinstance(item, str) and hides_text(item, prose=prose):
            return item
        if isinstance(item, Mapping):
            for key, value in item.items():
                if hides_text(str(key), prose=False):
                    return str(key)
                stack.append((value, prose and key not in EXACT))
        elif isinstance(item, list | tuple):
            stack.extend((one, prose) for one in item)
    return None


def folded(name: str) -> str:
    """Return a name as a reader may take it: names that differ in case or in width only look the same."""
    return unicodedata.normalize("NFKC", name).casefold()
