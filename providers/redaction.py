"""What a log may show of a value: secrets become ``***``, and whatever is no plain data becomes the name of its type.

Two kinds of detector, both simple on purpose: what a key is called, and what a text looks like. Neither knows all
secrets: nothing that may hold one belongs in a log. Callgate itself never logs arguments, outputs or, unless told to,
the text of an exception.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from callgate.errors import CallgateError
from callgate.providers.detectors import MASK, PATTERNS
from callgate.providers.scrubbing import CURRENT

MAX_TEXT = 2048
"""Characters of one text that are shown."""
MAX_ITEMS = 100
"""Entries of one list or mapping that are shown."""
MAX_DEPTH = 8
"""Levels that are shown; what lies deeper, or in a circle, is masked."""

_LOOKED_AT = 2 * MAX_TEXT  # a secret that lies across the end of what is shown is still seen

SECRET_KEYS = (
    "password passwd passphrase pwd passcode secret token apikey accesskey privatekey signingkey encryptionkey "
    "sessionkey authorization authentication proxyauth credential cookie bearer jwt signature otp cvv pincode"
).split()
"""A key that has one of these in it, in any case and spelling (``API-Key``, ``apiKey``), has its value masked."""

_NAMES = (
    r"pass(?:word|wd|phrase|code)|pwd|secret|token|(?:api|access|private|signing|session)[ _-]?key|credential|jwt|otp"
)
_QUOTED_OR_WORD = r"""(?:"[^"]*(?:"|$)|'[^']*(?:'|$)|[^\s,;&]+)"""


def _shared(name: str) -> tuple[re.Pattern[str], str]:
    pattern, template = PATTERNS[name]
    return pattern, template.format(MASK)


_TEXTS: tuple[tuple[re.Pattern[str], str], ...] = (
    _shared("private_key"),
    (re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s*[:=]).*"), rf"\1\2 {MASK}"),
    (re.compile(rf"(?i)({_NAMES})(\w*['\"]?\s*(?:[:=]|\bis\b)\s*){_QUOTED_OR_WORD}"), rf"\1\2{MASK}"),
    (re.compile(r"""(?<=://)[^\s"'<>@]*@(?:[^\s"'<>@]*@)*"""), f"{MASK}@"),
    _shared("bearer"),
    _shared("jwt"),
    _shared("api_key"),
)
_LONG = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Redactor:
    """Makes values fit for a log. Call it with one value, or give it to structlog as a processor: ``redactor.event``.

    ``keys`` are further names of keys to mask. Fields named in ``ids`` are identifiers at the top of an event, which
    may be long and random by nature: they are looked over for known kinds of secret, not for length.
    ``errors`` says what of an exception is shown: ``"type"``, or ``"text"``, its message looked over like any text.
    """

    def __init__(self, keys: Iterable[str] = (), *, ids: AbstractSet[str] = frozenset(), errors: str = "type") -> None:
        if errors not in ("type", "text"):
            raise ValueError(f"errors is {errors!r}; choose 'type' or 'text'")
        self._secret = re.compile("|".join(map(re.escape, [*SECRET_KEYS, *(k for k in map(_plain, keys) if k)])))
        self._ids = ids
        self._shows_text = errors == "text"

    def __call__(self, value: Any) -> Any:
        """A copy in plain data: dicts with text keys, lists, texts, numbers, booleans, None."""
        return self._shown(value, MAX_DEPTH)

    def event(self, _logger: Any, _method: str, event: Mapping[str, Any]) -> dict[str, Any]:
        """The same for a whole event, as structlog calls its processors."""
        return {
            str(name): redact_text(value, long=False)
            if name in self._ids and isinstance(value, str)
            else self._entry(name, value, MAX_DEPTH)
            for name, value in event.items()
        }

    def is_secret(self, key: str) -> bool:
        """Whether what stands under this key is masked."""
        return self._secret.search(_plain(key)) is not None

    def _entry(self, key: Any, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool) or not self.is_secret(str(key) if isinstance(key, str) else ""):
            return self._shown(value, depth)
        return MASK

    def _shown(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return redact_text(value)
        if isinstance(value, BaseException):
            return self._error(value)
        show = self._container(value)
        if show is None:
            return f"<{type(value).__name__}>"
        return show(value, depth - 1) if depth else MASK

    def _container(self, value: Any) -> Callable[[Any, int], Any] | None:
        if isinstance(value, Mapping):
            return self._mapping
        return self._list if isinstance(value, list | tuple | set | frozenset) else None

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for key, item in value.items():
            if len(shown) == MAX_ITEMS:
                shown["…"] = f"{len(value) - MAX_ITEMS} more"
                break
            shown[self._key(key)] = self._entry(key, item, depth)
        return shown

    def _list(self, value: Iterable[Any], depth: int) -> list[Any]:
        items = list(value)
        shown = [self._shown(item, depth) for item in items[:MAX_ITEMS]]
        return shown if len(items) <= MAX_ITEMS else [*shown, f"… {len(items) - MAX_ITEMS} more"]

    def _key(self, key: Any) -> str:
        if isinstance(key, str):
            return redact_text(key)
        return str(key) if key is None or isinstance(key, bool | int | float) else f"<{type(key).__name__}>"

    def _error(self, error: BaseException) -> str:
        kind = type(error).__name__
        if isinstance(error, CallgateError):
            kind = f"{kind}({error.code})"
        if not self._shows_text:
            return kind
        try:
            return f"{kind}: {redact_text(str(error))}"
        except Exception:  # noqa: BLE001  (an exception may not even be able to say what it is)
            return kind


def redact_text(text: str, *, long: bool = True) -> str:
    """*text* with what looks like a secret masked, and cut at ``MAX_TEXT``.

    With ``long=False`` runs of letters and digits are not taken for secrets because they are long.
    """
    scrubber = CURRENT.get()
    if scrubber is not None:  # what the invocation that is being logged knows to be secret
        text = scrubber.text(str.__str__(text))
    shown = str.__str__(text)[:_LOOKED_AT]
    for pattern, mask in _TEXTS:
        shown = pattern.sub(mask, shown)
    if long:
        shown = _LONG.sub(_unless_harmless, shown)
    return shown if len(shown) <= MAX_TEXT and len(text) <= _LOOKED_AT else f"{shown[:MAX_TEXT]}…"


def _unless_harmless(found: re.Match[str]) -> str:
    """A long run is a key or a digest when it mixes letters and digits; words, rules of dashes and UUIDs are not."""
    run = found[0]
    mixed = any(map(str.isdigit, run)) and any(map(str.isalpha, run))
    shouts = run.upper() != run and run.lower() != run and not re.search(r"[/_-]", run)
    return MASK if (mixed or shouts) and not _UUID.fullmatch(run) else run


def _plain(key: str) -> str:
    """A key without case, signs and typographic variants: ``API-Key``, ``api_key`` and ``apiKey`` are one."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", key).casefold()))
