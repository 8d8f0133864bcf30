"""A tool that gives its secret away: in pieces of a stream, in another encoding, or in an error."""

from __future__ import annotations

import base64
import html
import json
import quopri
import re
import shlex
import string
import traceback
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote, quote_plus

import pytest

from callgate import Effects, Gate, Provide, ToolContext, User, tool
from callgate.hooks import Secrets
from callgate.providers.scrubbed_parts import MOST_HELD, PartScrubber
from callgate.providers.scrubbing import Scrubber
from callgate.providers.spellings import spellings
from callgate.runtime.pipeline.streams import Partial, Result

SECRET = "sk-live/7Qx+ü Zw2"
ODD = "sk-live/7Q\\x+ü<Z:w2&\"q' é="
"""A secret that no two encodings show alike."""
ANN = User("ann")
RAW = SECRET.encode()


def in_base64(before: bytes, after: bytes, signs: bytes = b"+/") -> str:
    return base64.b64encode(before + RAW + after, signs).decode()


ENCODED: dict[str, Callable[[], str]] = {
    "plain": lambda: SECRET,
    "upper case": SECRET.upper,
    "lower case": SECRET.lower,
    "hexadecimal": RAW.hex,
    "hexadecimal in upper case": lambda: RAW.hex().upper(),
    "URL": lambda: quote(SECRET, safe=""),
    "URL in lower case": lambda: (
        quote(SECRET, safe="").replace("%2F", "%2f").replace("%2B", "%2b").replace("%C3%BC", "%c3%bc")
    ),
    "URL, every byte": lambda: "".join(f"%{byte:02X}" for byte in RAW),
    "JSON": lambda: json.dumps(SECRET, ensure_ascii=False),
    "JSON in ASCII": lambda: json.dumps(SECRET),
    **{f"base64 behind {count} bytes": partial(in_base64, b"user:"[:count], b"!") for count in range(6)},
    **{f"URL-safe base64 behind {count} bytes": partial(in_base64, b"ab"[:count], b"", b"-_") for count in range(3)},
}


def in_units(secret: str, upper: bool = False) -> str:
    """An escape for each UTF-16 unit."""
    units = (
        f"{int.from_bytes(secret.encode('utf-16-be')[at : at + 2], 'big'):04x}" for at in range(0, 2 * len(secret), 2)
    )
    return "".join("\\u" + (unit.upper() if upper else unit) for unit in units)


def go_json(secret: str) -> str:
    """JSON as Go writes it."""
    return re.sub("[<>&]", lambda found: in_units(found[0]), json.dumps(secret, ensure_ascii=False))


def dot_net_json(secret: str) -> str:
    """JSON as .NET writes it."""
    plain = secret.replace("\\", "\\\\")
    return re.sub(r"[^\x20-\x7e]|[\"'&<>+`]", lambda found: in_units(found[0], upper=True), plain)


def percent(data: bytes, keep: str, form: str = "%{:02X}") -> str:
    """Quote bytes for a URL."""
    kept = f"{keep}{string.ascii_letters}{string.digits}-_.~".encode()
    return "".join(chr(byte) if byte in kept else form.format(byte) for byte in data)


UTF_8: dict[str, Callable[[str], bytes]] = {
    "UTF-8": lambda secret: secret.encode(),
    "Latin-1": lambda secret: secret.encode("latin-1"),
    "composed": lambda secret: unicodedata.normalize("NFC", secret).encode(),
    "decomposed": lambda secret: unicodedata.normalize("NFD", secret).encode(),
}


def octal(data: bytes) -> str:
    """The text format of protobuf."""
    plain = data.decode("latin-1").replace("\\", "\\\\").replace('"', '\\"').replace("'", "\\'")
    return re.sub("[^\x20-\x7e]", lambda found: f"\\{ord(found[0]):03o}", plain)


OF_BYTES: dict[str, Callable[[bytes], str]] = {
    "urllib.parse.quote": quote,
    "quote_plus": quote_plus,
    "encodeURIComponent": lambda data: percent(data, "!*'()"),
    "encodeURI": lambda data: percent(data, ";,/?:@&=+$!*'()#"),
    "encodeURI in lower case": lambda data: percent(data, ";,/?:@&=+$!*'()#", "%{:02x}"),
    "hex": lambda data: data.hex(),
    "hex with spaces": lambda data: data.hex(" "),
    "hex with spaces in upper case": lambda data: data.hex(" ").upper(),
    "hex with colons": lambda data: data.hex(":"),
    "hex with colons in upper case": lambda data: data.hex(":").upper(),
    "repr of bytes": lambda data: repr(data)[2:-1],
    "repr of bytes with both quotes": lambda data: repr(b"'\"" + data)[5:-1],
    "an escape for each byte": lambda data: "".join(f"\\x{byte:02x}" for byte in data),
    "base64": lambda data: base64.b64encode(data).decode(),
    "base64 behind a user": lambda data: base64.b64encode(b"user:" + data + b"!").decode(),
    "URL-safe base64": lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
    "URL within a URL": lambda data: quote(quote(data, safe=""), safe=""),
    "query within a URL": lambda data: quote(quote_plus(data), safe=""),
    "mail": lambda data: quopri.encodestring(data).decode().replace("=\n", ""),
    "read as Latin-1": lambda data: data.decode("latin-1"),
    "protobuf": octal,
}
OF_TEXT: dict[str, Callable[[str], str]] = {
    "JSON": lambda secret: json.dumps(secret, ensure_ascii=False),
    "JSON in ASCII": json.dumps,
    "JSON in ASCII, upper case": lambda secret: dot_net_json(secret.replace("'", "").replace("+", "")),
    "JSON with escaped slashes (PHP)": lambda secret: json.dumps(secret).replace("/", "\\/"),
    "JSON for HTML (Go)": go_json,
    "JSON for HTML (.NET)": dot_net_json,
    "JSON, each unit": in_units,
    "JSON, each unit in upper case": lambda secret: in_units(secret, upper=True),
    "HTML": html.escape,
    "HTML without quotes": lambda secret: html.escape(secret, quote=False),
    "HTML (Go)": lambda secret: html.escape(secret, quote=False).replace('"', "&#34;").replace("'", "&#39;"),
    "XML": lambda secret: html.escape(secret, quote=False).replace('"', "&quot;").replace("'", "&apos;"),
    "XML in ASCII": lambda secret: html.escape(secret, quote=False).encode("ascii", "xmlcharrefreplace").decode(),
    "JSON as a text of JSON": lambda secret: json.dumps(json.dumps({"key": secret}, ensure_ascii=False)),
    "JSON in ASCII as a text of JSON": lambda secret: json.dumps(json.dumps({"key": secret})),
    "shell": shlex.quote,
    "SQL": lambda secret: secret.replace("'", "''"),
    "CSV": lambda secret: secret.replace('"', '""'),
    "ascii": lambda secret: ascii(secret)[1:-1],
    "repr": lambda secret: repr(secret)[1:-1],
    "upper case": str.upper,
    "lower case": str.lower,
    "decomposed": lambda secret: unicodedata.normalize("NFD", secret),
}


def after(encode: Callable[[str], bytes], show: Callable[[bytes], str]) -> Callable[[str], str]:
    """Encode a text, and show its bytes."""
    return lambda secret: show(encode(secret))


SPELLED: dict[str, Callable[[str], str]] = {
    **OF_TEXT,
    **{f"{name} of {charset}": after(UTF_8[charset], show) for name, show in OF_BYTES.items() for charset in UTF_8},
}
SECRETS = {
    "odd": ODD,
    "a key": "sk-live-7Q2xZpretend",
    "base64": "aB3+x/9Zq2LmN0pQ7r==",
    "a password": "pa&ss w<o>rd'1+",
    "umlauts": "größe-Schlüssel",
    "double quote": 'a"b"cdefgh',
}
PARTS = [1, 2, 3, 7, 100]
SHAPES: dict[str, Callable[[str], Any]] = {
    "texts": lambda piece: piece,
    "objects": lambda piece: {"delta": {"text": piece}, "n": 1},
    "lists": lambda piece: [0, piece],
}


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def joined(value: Any) -> str:
    """All texts of a value, one after the other."""

    def found(one: Any) -> Iterator[str]:
        if isinstance(one, str):
            yield one
        for each in one.values() if isinstance(one, dict) else one if isinstance(one, list) else ():
            yield from found(each)

    return "".join(found(value))


def secret_in(text: str) -> str:
    return next((one for one in spellings(SECRET) if one in text), "")


async def streamed(text: str, size: int, shape: Callable[[str], Any]) -> tuple[list[Any], Any]:
    """The parts and the output of a tool that yields *text* in pieces."""

    @tool(effect="read")
    async def leak(key: Annotated[str, Provide["key"]]) -> AsyncIterator[Any]:
        """Yield pieces."""
        assert key == SECRET
        for piece in pieces_of(text, size):
            yield shape(piece)

    @tool(effect="read")
    async def send(ctx: ToolContext, key: Annotated[str, Provide["key"]]) -> str:
        """Send pieces."""
        assert key == SECRET
        for piece in pieces_of(text, size):
            await ctx.send(shape(piece))
        return "done"

    parts: list[Any] = []
    outputs: list[Any] = []
    hooks = [Secrets({"key": lambda _: SECRET})]
    async with Gate([leak, send], hooks, allow_unguarded=True, effects=Effects(durable=False)) as gate:
        for name in ("leak", "send"):
            async for event in gate.stream(name, {}, user=ANN):
                if isinstance(event, Partial):
                    parts.append(event.value)
                elif isinstance(event, Result):
                    outputs.append(event.result.output)
            parts.append("|")
    return parts, outputs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", PARTS)
async def test_no_pieces_of_a_stream_make_a_secret(size: int, shape: str) -> None:
    """What is around the secret arrives, in order."""
    for text in (f"before {SECRET} after", f"{SECRET}{SECRET}", f"sk-live/ is no secret {RAW.hex()}"):
        parts, outputs = await streamed(text, size, SHAPES[shape])
        for shown in (joined(parts), joined(outputs)):
            assert secret_in(shown) == ""
            assert "***" in shown
        assert text[:3] == "sk-" or joined(parts).startswith("before *** after|before *** after|")


@pytest.mark.parametrize("size", PARTS[:-1])
async def test_control_without_holding_back_the_pieces_make_the_secret(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartScrubber, "feed", lambda _self, part: [part])
    parts, outputs = await streamed(SECRET, size, SHAPES["texts"])
    assert secret_in(joined(parts))
    assert secret_in(joined(outputs))


async def test_parts_without_a_secret_are_the_same_and_are_not_held_back() -> None:
    scrubber = PartScrubber(spellings(SECRET))
    for part in ("hello", {"a": ["b"]}, 7, None, "", "s"):
        assert scrubber.feed(part) == ([] if part == "s" else [part])
    assert scrubber.feed("un") == ["s", "un"]
    assert scrubber.flush() == []


def test_what_is_held_back_is_bounded() -> None:
    """The beginning of a secret, and then parts without a text: the beginning is masked."""
    scrubber = PartScrubber(spellings(SECRET))
    shown = [*scrubber.feed({"a": "x sk-live"})]
    for _ in range(2 * MOST_HELD):
        shown += scrubber.feed({"b": 1})
    assert len(shown) > MOST_HELD
    assert shown[0] == {"a": "x ***"}


@pytest.mark.parametrize("encoding", ENCODED)
def test_an_encoding_of_a_secret_is_found_in_texts_and_values(encoding: str) -> None:
    """The control: a scrubber of another secret leaves it."""
    text = f"<{ENCODED[encoding]()}>"
    for secret, found in ((SECRET, True), ("another secret", False)):
        scrubber = Scrubber()
        scrubber.add_secrets(spellings(secret))
        assert ("***" in scrubber.text(text)) is found
        assert ("***" in str(scrubber.value({"a": [text]}))) is found


CASES = [
    pytest.param(secret, show, id=f"{kind}, {name}")
    for kind, secret in SECRETS.items()
    for name, show in SPELLED.items()
    if not (name.startswith("JSON in ASCII, upper") and ("'" in secret or "+" in secret))
]


@pytest.mark.parametrize(("secret", "show"), CASES)
def test_each_spelling_of_each_secret_is_found_whole_and_in_pieces(secret: str, show: Callable[[str], str]) -> None:
    """As a text, in a value, and in two parts of a stream that is cut at every place; a scrubber of another is the control."""
    shown = show(secret)
    text = f"<{shown}>"
    scrubber, other = Scrubber(), Scrubber()
    scrubber.add_secrets(spellings(secret))
    other.add_secrets(spellings("another secret"))
    assert "***" in scrubber.text(text)
    assert "***" in str(scrubber.value({"a": [text]}))
    assert other.text(text) == text
    assert other.value({"a": [text]}) == {"a": [text]}
    known = spellings(secret)
    for cut in range(len(text) + 1):
        parts = PartScrubber(known)
        out = [*parts.feed(text[:cut]), *parts.feed(text[cut:]), *parts.flush()]
        assert "***" in "".join(map(str, out))
        assert shown not in "".join(map(str, out))


def test_the_bytes_of_a_file_are_searched_as_utf_8_and_as_latin_1() -> None:
    scrubber = Scrubber()
    scrubber.add_secrets(spellings(ODD))
    for charset in ("utf-8", "latin-1"):
        data = base64.b64encode(b"\xff" + ODD.encode(charset)).decode()
        cleaned: Any = scrubber.value({"type": "file", "data": data, "mimeType": "application/octet-stream"})
        assert base64.b64decode(cleaned["data"]) == b"\xff***"


def test_a_plain_key_has_few_spellings() -> None:
    """Each one is searched in each output of a call with secrets."""
    assert len(spellings("sk-live-7Q2xZpretend")) <= 20
    assert len(spellings("aB3+x/9Zq2LmN0pQ7r==")) <= 40


ERRORS: dict[str, Callable[[], Any]] = {
    "decode": (RAW + b"\xff").decode,
    "decode Latin-1": SECRET.encode("latin-1").decode,
    "decode UTF-16": partial((SECRET.encode("utf-16-le") + b"\xff").decode, "utf-8"),
    "encode": lambda: SECRET.encode("ascii"),
    "translate": lambda: (_ for _ in ()).throw(UnicodeTranslateError(SECRET, 0, 1, "no")),
}


@pytest.mark.parametrize("known", [True, False], ids=["scrubbed", "control without the secret"])
@pytest.mark.parametrize("kind", ERRORS)
def test_the_text_in_an_error_of_an_encoding_is_removed(kind: str, known: bool) -> None:
    scrubber = Scrubber()
    scrubber.add_secrets(spellings(SECRET if known else "another secret"))
    with pytest.raises(UnicodeError) as caught:
        ERRORS[kind]()
    cleaned: Any = scrubber.error(caught.value)
    shown = f"{cleaned.object!r} {cleaned.args!r}".replace("\\x00", "")
    assert any(one in shown for one in spellings(SECRET)) is not known
    assert str(cleaned)


class Refused(Exception):
    """An error whose attribute is in no dictionary."""

    __slots__ = ("url",)

    def __init__(self, url: str) -> None:
        super().__init__("refused")
        self.url = url


def noted(notes: Any) -> Exception:
    error = ValueError("x")
    error.__notes__ = notes
    return error


def behind(link: str, depth: int) -> Exception:
    """An error with a secret behind many others."""
    found: Exception = ValueError(SECRET)
    for number in range(depth):
        if link == "group":
            found = ExceptionGroup("several", [found])
        else:
            outer = RuntimeError(f"{number}")
            setattr(outer, link, found)
            found = outer
    return found


def within(depth: int) -> Exception:
    found: Any = SECRET
    for _ in range(depth):
        found = [found]
    return RuntimeError(found)


HIDDEN: dict[str, Callable[[], Exception]] = {
    "slot": partial(Refused, SECRET),
    "note": partial(noted, [SECRET]),
    "notes that are a text": partial(noted, SECRET),
    "name of a file in bytes": partial(OSError, 2, "no such file", RAW),
    "group": partial(behind, "group", 3),
    "deep value": partial(within, 50),
    **{
        f"{link} behind {depth}": partial(behind, link, depth)
        for link in ("__cause__", "__context__")
        for depth in (1, 99)
    },
}
DEEP: dict[str, Callable[[], Exception]] = {
    "cause": partial(behind, "__cause__", 5_000),
    "context": partial(behind, "__context__", 5_000),
    "group": partial(behind, "group", 5_000),
}


def all_of(error: BaseException) -> str:
    """What a hook, a log or a service for errors may read of an error."""
    shown = [repr(error), "".join(traceback.format_exception(error)), repr(getattr(error, "__notes__", ""))]
    shown += [repr(getattr(error, name)) for name in ("url", "filename") if hasattr(error, name)]
    return " ".join(shown)


@pytest.mark.parametrize("known", [True, False], ids=["scrubbed", "control without the secret"])
@pytest.mark.parametrize("where", HIDDEN)
def test_a_secret_is_found_wherever_an_error_has_it(where: str, known: bool) -> None:
    scrubber = Scrubber()
    scrubber.add_secrets(spellings(SECRET if known else "another secret"))
    shown = all_of(scrubber.error(HIDDEN[where]()))
    assert any(one in shown for one in spellings(SECRET)) is not known
    assert ("***" in shown) is known
    assert "'s', 'k'" not in shown


@pytest.mark.parametrize("where", DEEP)
async def test_an_error_that_is_too_deep_to_search_is_replaced(where: str) -> None:
    """The call fails as any other. The control is an error of the same kind that is not deep."""
    outcomes = []
    for make in (DEEP[where], lambda: RuntimeError("plain")):

        @tool(effect="read")
        async def fail(key: Annotated[str, Provide["key"]]) -> str:
            """Fail."""
            raise make()  # noqa: B023

        async with Gate([fail], [Secrets({"key": lambda _: SECRET})], allow_unguarded=True) as gate:
            result = await gate.call("fail", {}, user=ANN)
            assert result.error is not None
            outcomes.append((result.outcome, result.error.code, SECRET in repr(result)))
    assert outcomes[0] == outcomes[1]
