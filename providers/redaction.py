"""Redaction of log values: secrets become ``***``, and objects that are not plain data become the name of their type.

There are two simple kinds of detectors: names of keys, and patterns of texts. They do not find every secret, so
do not log values that may contain one. Callgate never logs arguments or outputs, and logs the text of an exception only
with ``errors="text"``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, TypeVar

from callgate.errors import CallgateError
from callgate.providers.detectors import MARKERS, MASK, PATTERNS
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


_Pattern: TypeAlias = tuple[Sequence[str], re.Pattern[str], str]


def _shared(name: str) -> _Pattern:
    pattern, template = PATTERNS[name]
    return MARKERS.get(name, _ANY), pattern, template.format(MASK)


_ANY = ("",)
_TEXTS: tuple[_Pattern, ...] = (
    _shared("private_key"),
    (_ANY, re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s*[:=]).*"), rf"\1\2 {MASK}"),
    (_ANY, re.compile(rf"(?i)({_NAMES})(\w*['\"]?\s*(?:[:=]|\bis\b)\s*){_QUOTED_OR_WORD}"), rf"\1\2{MASK}"),
    (("://",), re.compile(r"""(?<=://)[^\s"'<>@]*@(?:[^\s"'<>@]*@)*"""), f"{MASK}@"),
    _shared("bearer"),
    _shared("jwt"),
    _shared("api_key"),
)
_CODE = (_shared("private_key"), _shared("bearer"), _shared("jwt"), _shared("api_key"))
_LONG = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


_OWN_ID = re.compile(r"(?:call_|job_)?[0-9a-f]{16,32}")
"""Ids that Callgate makes: no pattern finds anything in one."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,20}Z")
_SHORT, _MANY = 64, 1_024
_CLEAN: dict[str, None] = {}
"""Short texts in which nothing was found, such as names of events, tools and users: each event has the same ones."""
K = TypeVar("K")
V = TypeVar("V")


def remember(known: dict[K, V], key: K, value: V) -> V:
    """Keep a value, and forget all others when they are many."""
    if len(known) >= _MANY:
        known.clear()
    known[key] = value
    return value


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
        self._ids, self._known = ids, dict[str, bool]()
        self._shows_text = errors == "text"

    def __call__(self, value: object) -> Any:
        """Return a redacted copy in plain data: dicts with text keys, lists, texts, numbers, booleans, None."""
        return self._shown(value, MAX_LOG_DEPTH)

    def event(self, _logger: object, _method: str, event: Mapping[str, object]) -> dict[str, object]:
        """Redact a whole event; a processor of structlog."""
        shown: dict[str, object] = {}
        clean = _CLEAN if CURRENT_SCRUBBER.get() is None else ()  # a text may hold a secret of this call alone
        for name, value in event.items():
            if not isinstance(value, str):
                shown[str(name)] = self._entry(name, value, MAX_LOG_DEPTH)
            elif name in self._ids:
                shown[str(name)] = redact_text(value, long=False)
            elif self.is_secret(name):
                shown[str(name)] = MASK
            elif value.__class__ is Rendered:
                shown[str(name)] = str.__str__(value)
            else:
                shown[str(name)] = value if value.__class__ is str and value in clean else redact_text(value)
        return shown

    def is_secret(self, key: str) -> bool:
        """Return True when the value of this key is masked."""
        known = self._known.get(key)
        if known is None:
            known = self._secret.search(plain_key(key)) is not None
            if len(key) <= _SHORT:
                remember(self._known, key, known)
        return known

    def _entry(self, key: object, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool) or not self.is_secret(str(key) if isinstance(key, str) else ""):
            return self._shown(value, depth)
        return MASK

    def _shown(self, value: object, depth: int) -> object:
        if isinstance(value, str):
            return str.__str__(value) if value.__class__ is Rendered else redact_text(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, BaseException):
            return self._error(value)
        if isinstance(value, Mapping):
            return self._mapping(value, depth - 1) if depth else MASK
        if isinstance(value, list | tuple | set | frozenset):
            return self._list(value, depth - 1) if depth else MASK
        return f"<{type(value).__name__}>"

    def _mapping(self, value: Mapping[object, object], depth: int) -> dict[str, object]:
        shown: dict[str, object] = {}
        for key, item in value.items():
            if len(shown) == MAX_LOG_ITEMS:
                shown["…"] = f"{len(value) - MAX_LOG_ITEMS} more"
                break
            shown[self._key(key)] = self._entry(key, item, depth)
        return shown

    def _list(self, value: Iterable[object], depth: int) -> list[object]:
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
    if text.__class__ is str and text in _CLEAN:
        return text
    shown = str.__str__(text)[:_LOOKED_AT]
    if shown in _CLEAN or (_TIME if long else _OWN_ID).fullmatch(shown):
        return shown
    whole = shown
    shown = _without(_TEXTS, shown)
    if long:
        shown = _LONG.sub(_unless_harmless, shown)
    if shown == whole and len(whole) < (_SHORT if long else 32):  # from 32 characters it may be a long run
        remember(_CLEAN, whole, None)
    return shown if len(shown) <= MAX_LOG_TEXT and len(text) <= _LOOKED_AT else f"{shown[:MAX_LOG_TEXT]}…"


def redact_known(text: str) -> str:
    """Return *text* with the secrets of the call that is being logged masked."""
    scrubber = CURRENT_SCRUBBER.get()
    return text if scrubber is None else scrubber.text(text)


def redact_code(text: str) -> str:
    """Return lines of source code with the keys of well-known formats masked."""
    return _without(_CODE, text)


def _without(patterns: Iterable[_Pattern], text: str) -> str:
    for markers, pattern, mask in patterns:
        for marker in markers:
            if marker in text:
                if pattern.search(text):  # most texts have nothing, and to prepare the mask costs more than to look
                    text = pattern.sub(mask, text)
                break
    return text


def _unless_harmless(found: re.Match[str]) -> str:
    """Mask a long run that mixes letters and digits, such as a key or digest. Words, dashes and UUIDs stay."""
    run = found[0]
    mixed = any(map(str.isdigit, run)) and any(map(str.isalpha, run))
    shouts = run.upper() != run and run.lower() != run and not re.search(r"[/_-]", run)
    return MASK if (mixed or shouts) and not _UUID.fullmatch(run) else run


_PATH = re.compile(r"[.*/$\[\]]")
_SEGMENTS = re.compile(r"[^.\[\]/$'\"#]+")


def pointer_of_path(name: str) -> str | None:
    """Return the JSON Pointer that a path such as ``$.card.number`` or ``people[*].iban`` means; None for a plain name."""
    return "/" + "/".join(_SEGMENTS.findall(name)) if _PATH.search(name) else None


def fault_of_key(key: object) -> str | None:
    """Return why no member has this name, and what to write; None if it is a name."""
    if not isinstance(key, str) or not key:
        return f"is {key!r}, and is the name of a member, such as 'password'"
    if pointer_of_path(key) is not None:
        last = next(iter([one for one in reversed(_SEGMENTS.findall(key)) if plain_key(one)]), "password")
        return f"is {key!r}, a path, and masks members by name, at any depth; write {last!r}"
    return None


def plain_key(key: str) -> str:
    """Normalize a key: ``API-Key``, ``api_key`` and ``apiKey`` become equal."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", key).casefold()))
