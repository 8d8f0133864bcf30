"""``Redact``: what is masked is masked everywhere, and nothing else is."""

from __future__ import annotations

import copy
import json
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from callgate import (
    Denied,
    Effects,
    Gate,
    Hook,
    InvokeContext,
    Stage,
    ToolCall,
    ToolDefinition,
    ToolError,
    ToolResult,
    configure_logging,
)
from callgate.errors import HookError
from callgate.hooks.stock.privacy.redact import Redact
from callgate.providers.detectors import DETECTORS, MASK
from callgate.tools import Issue
from tests.harness.cpu import cpu_seconds
from tests.hooks.making import ANYTHING, USER, Watch, at, record

CANARY = "canary7Q2xZ"
CARD = "4111 1111 1111 1111"
TEXTS = {
    "card": [CARD, "4111111111111111", "4111-1111-1111-1111", "378282246310005", f"12 {CARD} 34"],
    "email": ["ann@example.org", "a.b+c@sub.example.co", "müller@exämple.de"],
    "jwt": ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.abc", "xeyJhbGciOiJIUzI1NiJ9.eyJzdWIi"],
    "bearer": ["Bearer abcdef123", "basic dXNlcjpwYXNz"],
    "api_key": ["sk-proj-abcdefgh1", "ghp_0123456789", "AKIAABCDEFGH1234"],
    "private_key": [
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nab",
    ],
}
HARMLESS = {
    "card": ["4111 1111 1111 1112", "1234567890123456789012", "2026-11-22 10:00:00", "order 12345"],
    "email": ["@example.org", "a@b", "at example.org"],
    "jwt": ["eyJ", "eyJhbGciOiJIUzI1NiJ9", "hello.world.txt"],
    "bearer": ["the bearer of this", "basic"],
    "api_key": ["sk-1", "task-force"],
    "private_key": ["BEGIN", "-----BEGIN CERTIFICATE-----"],
}


@pytest.fixture(autouse=True)
def default_logging_afterwards() -> Iterator[None]:
    yield
    configure_logging()


@pytest.mark.parametrize("kind", DETECTORS)
def test_each_detector_finds_its_kind_and_leaves_the_rest(kind: str) -> None:
    """Issue 4: card numbers with Luhn, e-mail, JWT, bearer tokens, keys."""
    for text in TEXTS[kind]:
        masked = DETECTORS[kind](f"before {text} after", MASK)
        assert MASK in masked, text
        assert masked.startswith("before")
    for text in HARMLESS[kind]:
        assert DETECTORS[kind](text, MASK) == text


PIECES = [
    "eyJ",
    "eyJa.",
    "a@",
    "@",
    "4 ",
    "41",
    "1-",
    "bearer ",
    "sk-",
    "-----BEGIN KEY",
    "a.b",
    "\n",
    "x",
    "ghp_",
    "a@b-",
]


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize("piece", PIECES)
def test_a_detector_reads_a_megabyte_in_linear_time(kind: str, piece: str) -> None:
    """Issue 4: linear-time patterns. A quadratic one would take minutes."""
    text = piece * (300_000 // len(piece))
    assert cpu_seconds(lambda: DETECTORS[kind](text, MASK), 3.0) < 3


async def result_of(*hooks: Any, arguments: Any, answer: Any = None, trace: bool = False) -> ToolResult:
    async def run(**given: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return given if answer is None else answer

    async with Gate([record(run, ANYTHING)], hooks, allow_unguarded=True, effects=Effects(durable=False)) as gate:
        return await gate.call(ToolCall(id="c1", name="echo", arguments=arguments), user=USER, trace=trace)


async def test_the_tool_gets_the_values_and_the_records_the_mask() -> None:
    """Contract C15b: what records show is ``masked_input``; the arguments are frozen and stay as they are."""
    watch = Watch(Stage.WILL_AUDIT)
    redact = Redact("apiKey", pointers=["/card/number", "/people/*/iban", "/~1a~0b"], at=["input"])
    given = {
        "card": {"number": CARD, "name": "Ann"},
        "people": [{"iban": "DE1"}, {"iban": "DE2", "id": 2}],
        "/a~b": 7,
        "x": {"API-KEY": [1, 2], "key": 3},
    }
    told = await result_of(redact, watch.hook, arguments=copy.deepcopy(given))
    assert told.output == given
    masked = watch.ctx.masked_input
    assert masked == {
        "card": {"number": MASK, "name": "Ann"},
        "people": [{"iban": MASK}, {"iban": MASK, "id": 2}],
        "/a~b": MASK,
        "x": {"API-KEY": MASK, "key": 3},
    }
    assert [entry.value for entry in watch.ctx.input_history] == [masked]


async def test_the_output_is_masked_for_its_reader_and_in_the_history() -> None:
    watch = Watch(Stage.WILL_AUDIT)
    redact = Redact(pointers=["/*/iban"], detectors=["email", "card"], mask=None, at=["output"])
    answer = [{"iban": "DE1"}, {"note": f"write to a@b.example, {CARD}", "n": 4111111111111111, "a@b.example": 1}]
    told = await result_of(redact, watch.hook, arguments={}, answer=answer)
    assert told.output == [{"iban": None}, {"note": "write to ***, ***", "n": None, "***": 1}]
    assert all(entry.value == told.output for entry in watch.ctx.output_history)


async def test_two_redactions_mask_what_each_of_them_masks() -> None:
    watch = Watch(Stage.WILL_AUDIT)
    hooks = [Redact(pointers=["/a"]), Redact("b")]
    told = await result_of(*hooks, watch.hook, arguments={"a": 1, "b": 2, "c": 3})
    assert watch.ctx.masked_input == told.output == {"a": MASK, "b": MASK, "c": 3}


async def test_two_masked_keys_are_two_members_still() -> None:
    told = await result_of(Redact(detectors=["email"]), arguments={"a@b.example": 1, "b@b.example": 2})
    assert told.output == {"***": 1, "****": 2}


ENDS_EARLY: dict[str, Any] = {
    "denied before it is parsed": at(Stage.WILL_AUTHORIZE, lambda ctx: ctx.abort("no")),
    "denied for its arguments": at(Stage.WILL_AUTHORIZE_INPUT, lambda ctx: ctx.abort("no")),
    "answered before it is parsed": at(Stage.WILL_CHECK_CONSENT, lambda ctx: ctx.respond("first agree")),
    "failing in another redaction": at(Stage.WILL_REDACT_INPUT, lambda ctx: 1 / 0, priority=10),
}


@pytest.mark.parametrize("how", ENDS_EARLY)
@pytest.mark.parametrize("as_text", [True, False])
async def test_a_call_that_ends_before_its_input_is_masked_shows_none_of_it(how: str, as_text: bool) -> None:
    """Contract C15b: a denied call is audited, too."""
    watch = Watch(Stage.WILL_AUDIT)
    given: Any = {"card": CANARY, "n": 1}
    await result_of(
        Redact(pointers=["/card"]), ENDS_EARLY[how], watch.hook, arguments=json.dumps(given) if as_text else given
    )
    assert CANARY not in repr(watch.ctx.masked_input) + repr(watch.ctx.input_history)


@pytest.mark.parametrize("arguments", [f'{{"card": "{CANARY}"', f'["{CANARY}"]', f"{CANARY}"])
async def test_arguments_that_cannot_be_read_are_masked_whole(arguments: str) -> None:
    watch = Watch(Stage.WILL_AUDIT)
    told = await result_of(Redact(pointers=["/card"]), watch.hook, arguments=arguments)
    assert told.outcome == "invalid"
    assert CANARY not in repr(watch.ctx.masked_input) + repr(watch.ctx.input_history) + repr(told.error)


async def test_issues_are_masked_and_are_issues_still() -> None:
    """Invariant I9: a name that a model made up may be a value, too."""
    definition = ToolDefinition("echo", "x", {"type": "object", "properties": {}, "additionalProperties": False})

    async def run() -> None:
        raise AssertionError

    async with Gate(
        [record(run, definition)], [Redact(detectors=["email"])], allow_unguarded=True, effects=Effects(durable=False)
    ) as gate:
        told = await gate.call(ToolCall(id="c1", name="echo", arguments={"ann@example.org": 1}), user=USER)
    assert told.error is not None
    assert all(isinstance(issue, Issue) for issue in told.error.issues)
    assert "example" not in repr(told.error)
    assert MASK in told.error.public


class Stubborn(Exception):
    """An error whose text is not made of its arguments."""

    __slots__ = ("told",)

    def __init__(self, told: str) -> None:
        super().__init__()
        self.told = told

    def __str__(self) -> str:
        return self.told


def _caused(error: BaseException) -> BaseException:
    told = RuntimeError("no")
    told.__cause__ = error
    return told


def _noted(text: str) -> BaseException:
    error = ValueError("x")
    error.add_note(text)
    return error


ERRORS: list[Any] = [
    lambda text: ToolError(f"no card {text}"),
    lambda text: ValueError(text, {"deep": [text]}),
    KeyError,
    lambda text: OSError(2, "not there", text),
    Stubborn,
    lambda text: _caused(Stubborn(text)),
    lambda text: _caused(ValueError(text)),
    _noted,
    lambda text: ExceptionGroup(text, [ValueError(text)]),
    lambda text: Denied(f"for {text}", public=f"not {text}"),
]


@pytest.mark.parametrize("make", ERRORS)
async def test_what_is_masked_in_the_input_is_in_no_error_and_no_log(make: Any) -> None:
    """Issue 4: masked in logs, audit, spans, errors and histories alike."""
    events: list[dict[str, Any]] = []
    seen: list[str] = []
    configure_logging(events.append, level="DEBUG", errors="text")

    class Recorder(Hook):
        """As a tracing hook does it: what passes by is recorded at once."""

        async def around_execute(self, ctx: InvokeContext, next: Any) -> Any:
            try:
                return await next()
            except Exception as error:
                seen.append(shown_as(error))
                raise

        def will_audit(self, ctx: InvokeContext) -> None:
            seen.append(shown_as(ctx.error))

    told = await result_of(Redact(pointers=["/card"]), Recorder(), arguments={"card": CANARY}, answer=make(CANARY))
    assert told.error is not None
    assert events
    assert len(seen) == 2, "what passes the wrapper, and what is recorded"
    assert CANARY not in repr(told.error) + repr(events) + "".join(seen)


def shown_as(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=0)) + repr(error)


# ---------------------------------------------------------------------- any value, anywhere

NAMES = st.sampled_from(["secret", "Se-Cret", "a", "b", "list"])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
HOLDS = st.recursive(
    st.just(CANARY),
    lambda inner: st.lists(inner | PLAIN, min_size=1, max_size=3) | st.dictionaries(NAMES, inner | PLAIN, max_size=3),
    max_leaves=6,
)
HOLDING = st.dictionaries(st.sampled_from(["secret", "S_ECRET", "in/here", "list"]), HOLDS, min_size=1, max_size=3).map(
    lambda held: {**held, "list": [{"iban": held.get("list")}, {"iban": CANARY, "ok": 1}], "mail": "a@b.example"}
)


def redacting() -> Redact:
    return Redact("secret", pointers=["/in~1here", "/list/*/iban"], detectors=["email"])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(HOLDING)
@example({"secret": {"secret": CANARY}, "list": [], "mail": "x"})
async def test_no_canary_is_left_wherever_it_stood(value: dict[str, Any]) -> None:
    """Issue 4: property test with canaries over random nested values."""
    watch = Watch(Stage.WILL_AUDIT)
    told = await result_of(redacting(), watch.hook, arguments=value)
    ctx = watch.ctx
    shown = json.dumps([told.output, ctx.masked_input]) + repr((ctx.input_history, ctx.output_history))
    assert CANARY not in shown
    assert "a@b.example" not in shown


async def test_the_same_search_finds_a_redaction_that_misses_a_place() -> None:
    """The control."""
    watch = Watch(Stage.WILL_AUDIT)
    lame = Redact(pointers=["/list/0/iban"])
    await result_of(lame, watch.hook, arguments={"list": [{"iban": 1}, {"iban": CANARY}]})
    assert CANARY in json.dumps(watch.ctx.masked_input)


@settings(max_examples=200)
@given(PLAIN)
def test_a_value_with_nothing_to_mask_is_handed_on_as_it_is(value: Any) -> None:
    assert redacting().masked(value) is value


# ---------------------------------------------------------------------- shadow, options


async def test_in_shadow_it_masks_nothing_and_says_how_much_it_would_have() -> None:
    """Issue 4: shadow decides, records, changes nothing."""
    watch = Watch(Stage.WILL_FINALIZE_INVOKE)
    told = await result_of(Redact(pointers=["/a"], mode="shadow"), watch.hook, arguments={"a": CANARY})
    assert told.output == watch.ctx.masked_input == {"a": CANARY}
    assert [str(one.error) for one in watch.ctx.suppressed] == [
        "Redact would have masked 1 values of the input",
        "Redact would have masked 1 values of the output",
    ]


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "masks nothing"),
    ((), {"pointers": "/a"}, "takes a collection"),
    ((), {"pointers": ["a/b"]}, "write '/a/b'"),
    ((), {"detectors": ["cards"]}, "did you mean 'card'"),
    (("a",), {"at": ["logs"]}, "choose from input, output"),
    ((["a", "b"],), {}, r"write Redact\('a', 'b'\)"),
    (("/a",), {}, r"write Redact\(pointers=\['/a'\]\)"),
    ((7,), {}, "is not the name of a member"),
    (("",), {}, "is not the name of a member"),
]


@pytest.mark.parametrize(("names", "options", "says"), WRONG)
def test_wrong_options_are_refused_with_what_to_do(names: Any, options: Any, says: str) -> None:
    with pytest.raises(HookError, match=says):
        Redact(*names, **options)
