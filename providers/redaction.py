"""Redaction of log values: secrets become ``***``, and objects that are not plain data become the name of their type.

There are two simple kinds of detectors: names of keys, and patterns of texts. They do not find every secret, so
do not log values that may contain one. Callgate never logs arguments or outputs, and logs the text of an exception only
with ``errors="text"``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from callgate.errors import CallgateError
from callgate.providers.detectors import MASK, PATTERNS
from callgate.providers.scrubbing import CURRENT_SCRUBBER

MAX_LOG_TEXT = 2048
"""Characters of one text that are shown."""
MAX_LOG_ITEMS = 100
"""Entries of one list or mapping that are shown."""
MAX_LOG_DEPTH = 8
"""Levels that are shown. Deeper levels and circular references are masked."""

_LOOKED_AT = 2 * MAX_LOG_TEXT  # a secret across the end of the shown part is still found

SECRET_KEYS = (
    "password passwd passphrase pwd passcode secret token apikey accesskey privatekey signingkey encryptionkey "
    "sessionkey authorization authentication proxyauth credential cookie bearer jwt signature otp cvv pincode"
).split()
"""Values are masked if their key contains one of these, in any case and spelling (``API-Key``, ``apiKey``)."""

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
_CODE = (_shared("private_key"), _shared("bearer"), _shared("jwt"), _shared("api_key"))
_LONG = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Rendered(str):
    """A text whose parts are redacted already. It may be longer than ``MAX_LOG_TEXT``."""

    __slots__ = ()


class Redactor:
    """Redacts values for a log. Call it with a value, or pass ``redactor.event`` to structlog as a processor.

    Args:
        keys: further names of keys whose values are masked.
        ids: fields of an event that are identifiers. They may be long and random, so only known patterns are masked.
        errors: ``"type"`` shows the type of an exception; ``"text"`` shows its message too, redacted like any text.
    """

    def __init__(self, keys: Iterable[str] = (), *, ids: AbstractSet[str] = frozenset(), errors: str = "type") -> None:
        if errors not in ("type", "text"):
            raise ValueError(f"errors is {errors!r}; choose 'type' or 'text'")
        self._secret = re.compile("|".join(map(re.escape, [*SECRET_KEYS, *(k for k in map(plain_key, keys) if k)])))
        self._ids = ids
        self._shows_text = errors == "text"

    def __call__(self, value: object) -> Any:
        """Return a redacted copy in plain data: dicts with text keys, lists, texts, numbers, booleans, None."""
        return self._shown(value, MAX_LOG_DEPTH)

    def event(self, _logger: Any, _method: str, event: Mapping[str, Any]) -> dict[str, Any]:
        """Redact a whole event; a processor of structlog."""
        return {
            str(name): redact_text(value, long=False)
            if name in self._ids and isinstance(value, str)
            else self._entry(name, value, MAX_LOG_DEPTH)
            for name, value in event.items()
        }

    def is_secret(self, key: str) -> bool:
        """Return True when the value of this key is masked."""
        return self._secret.search(plain_key(key)) is not None

    def _entry(self, key: object, value: object, depth: int) -> Any:
        if value is None or isinstance(value, bool) or not self.is_secret(str(key) if isinstance(key, str) else ""):
            return self._shown(value, depth)
        return MASK

    def _shown(self, value: object, depth: int) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return str.__str__(value) if value.__class__ is Rendered else redact_text(value)
        if isinstance(value, BaseException):
            return self._error(value)
        show = self._container(value)
        if show is None:
            return f"<{type(value).__name__}>"
        return show(value, depth - 1) if depth else MASK

    def _container(self, value: object) -> Callable[[Any, int], object] | None:
        if isinstance(value, Mapping):
            return self._mapping
        return self._list if isinstance(value, list | tuple | set | frozenset) else None

    def _mapping(self, value: Mapping[Any, object], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for key, item in value.items():
            if len(shown) == MAX_LOG_ITEMS:
                shown["…"] = f"{len(value) - MAX_LOG_ITEMS} more"
                break
            shown[self._key(key)] = self._entry(key, item, depth)
        return shown

    def _list(self, value: Iterable[object], depth: int) -> list[Any]:
        items = list(value)
        shown = [self._shown(item, depth) for item in items[:MAX_LOG_ITEMS]]
        return shown if len(items) <= MAX_LOG_ITEMS else [*shown, f"… {len(items) - MAX_LOG_ITEMS} more"]

    def _key(self, key: object) -> str:
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
        except Exception:  # noqa: BLE001  (the exception's own `__str__` may fail)
            return kind


def redact_text(text: str, *, long: bool = True) -> str:
    """Return *text* with its secrets masked, cut at ``MAX_TEXT`` characters.

    With ``long=False`` a long run of letters and digits alone does not count as a secret.
    """
    scrubber = CURRENT_SCRUBBER.get()
    if scrubber is not None:  # secrets of the call that is being logged
        text = scrubber.text(str.__str__(text))
    shown = str.__str__(text)[:_LOOKED_AT]
    for pattern, mask in _TEXTS:
        shown = pattern.sub(mask, shown)
    if long:
        shown = _LONG.sub(_unless_harmless, shown)
    return shown if len(shown) <= MAX_LOG_TEXT and len(text) <= _LOOKED_AT else f"{shown[:MAX_LOG_TEXT]}…"


def redact_code(text: str) -> str:
    """Return lines of source code with the known secrets and the keys of well-known formats masked."""
    scrubber = CURRENT_SCRUBBER.get()
    text = text if scrubber is None else scrubber.text(text)
    for pattern, mask in _CODE:
        text = pattern.sub(mask, text)
    return text


def _unless_harmless(found: re.Match[str]) -> str:
    """Mask a long run that mixes letters and digits, such as a key or digest. Words, dashes and UUIDs stay."""
    run = found[0]
    mixed = any(map(str.isdigit, run)) and any(map(str.isalpha, run))
    shouts = run.upper() != run and run.lower() != run and not re.search(r"[/_-]", run)
    return MASK if (mixed or shouts) and not _UUID.fullmatch(run) else run


def plain_key(key: str) -> str:
    """Normalize a key: ``API-Key``, ``api_key`` and ``apiKey`` become equal."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", key).casefold()))
