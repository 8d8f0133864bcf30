"""Redaction of logs: no secret in any sink, with any payload, and plain text unchanged."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callgate import configure_logging
from callgate.providers import redaction
from callgate.providers.logs import LogEvent, emit
from callgate.providers.redaction import MAX_LOG_ITEMS, MAX_LOG_TEXT, Redactor, redact_text
from callgate.providers.scrubbing import CURRENT_SCRUBBER, Scrubber
from tests.harness.cpu import cpu_seconds
from tests.runtime.pipeline.listening import handled


@pytest.fixture(autouse=True)
def default_afterwards() -> Iterator[None]:
    yield
    configure_logging()


CANARY = "canary7Q2xZ"
SECRET_NAMES = st.sampled_from(
    "password API-Key apiKey access_token Authorization client_secret Set-Cookie db_passwd PRIVATE_KEY X-Auth-Token "
    "ｐａｓｓｗｏｒｄ userCredentials jwt sessionKey".split()
)
SHAPED = st.sampled_from(
    [
        f"eyJhbGciOiJIUzI1NiJ9.{CANARY}eyJzdWIi.{CANARY}",
        f"Authorization: Bearer {CANARY} {CANARY}",
        f"Bearer {CANARY}-abcdef",
        f"sk-proj-{CANARY}abcdefgh",
        f"ghp_{CANARY}0123456789",
        f"postgres://app:{CANARY}@db.internal/x",
        f"https://{CANARY}:{CANARY}@host/",
        f"amqp://u:p@{CANARY}@host",
        f"password={CANARY}",
        f"the password is {CANARY}",
        f'{{"api_key": "{CANARY} and {CANARY}"}}',
        f"?token={CANARY}&x=1",
        f"Cookie: a={CANARY}; b={CANARY}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n",
        f"{CANARY}wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
        f"{CANARY}/wJalrXUtnFEMI+K7MDENG/bPxRfiCY==",
    ]
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)


class Opaque:
    """An object that tells too much when asked."""

    def __repr__(self) -> str:
        return CANARY

    __str__ = __repr__


def around(text: str) -> st.SearchStrategy[str]:
    return st.builds("{} {} {}".format, st.text("ab \n", max_size=5), st.just(text), st.text("xy .", max_size=5))


HOLDING = (
    SHAPED.flatmap(around)
    | st.builds(Opaque)
    | st.just(CANARY.encode())
    | st.builds(ValueError, st.just(f"password={CANARY}"))
    | st.fixed_dictionaries({}).flatmap(
        lambda _: st.dictionaries(SECRET_NAMES, st.just(CANARY), min_size=1, max_size=2)
    )
    | SHAPED.map(lambda key: {key: 1})
)
PAYLOADS = st.recursive(
    HOLDING | PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=4)
        | st.dictionaries(SECRET_NAMES, inner | st.just(CANARY), max_size=2)
    ),
    max_leaves=12,
)


def heard_by_every_sink(payload: Any) -> list[str]:
    """Return the output of each kind of sink for an event with the payload."""
    heard = []
    for form in ("text", "json"):
        file = io.StringIO()
        configure_logging(file, form=form, errors="text")
        emit(LogEvent.PROVIDER_FAILED, provider=payload, phase="make", error=ValueError(f"token: {CANARY}"))
        heard.append(file.getvalue())
    kept: list[dict[str, Any]] = []
    added = [lambda _logger, _method, event: {**event, "added": {"x": payload}, "secret": CANARY}]
    configure_logging(kept.append, processors=added)
    emit(LogEvent.PROVIDER_FAILED, provider=payload, phase="make")
    heard.append(json.dumps(kept, ensure_ascii=False))
    stream = io.StringIO()
    configure_logging(errors="text")
    with handled(logging.StreamHandler(stream)):
        emit(LogEvent.PROVIDER_FAILED, provider=payload, phase="make")
    heard.append(stream.getvalue())
    configure_logging()
    return heard


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(payload=PAYLOADS)
def test_no_canary_reaches_any_sink(payload: Any) -> None:
    """A redaction processor runs before every sink."""
    heard = heard_by_every_sink(payload)
    assert all("provider.failed" in text for text in heard), "the control: each sink was given the event"
    assert [text for text in heard if CANARY in text] == []


def test_without_the_processor_the_canaries_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged control: the proof above can fail."""
    monkeypatch.setattr(Redactor, "event", lambda self, _logger, _method, event: dict(event))
    heard = heard_by_every_sink({"password": CANARY, "deep": [{"x": f"Bearer {CANARY}"}]})
    assert all(CANARY in text for text in heard)


@pytest.mark.parametrize("text", ["Bearer canary7Q2xZ", "sk-live-canary7Q2xZ"])
def test_ids_are_looked_over_for_known_secrets_and_may_be_long(text: str) -> None:
    found: list[dict[str, Any]] = []
    configure_logging(found.append)
    long = "0123456789abcdef0123456789abcdef"
    emit(LogEvent.SESSION_ENDED, session_id=long, reason=long)
    emit(LogEvent.SESSION_ENDED, session_id=text)
    assert (found[0]["session_id"], found[0]["reason"]) == (long, "***")
    assert CANARY not in str(found[1])


@pytest.mark.parametrize(
    "text",
    [
        "the order has 3 items and ships on 2026-11-22T04:55:01Z",
        "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "--------------------------------------------------------",
        "a_name_that_is_long_but_only_made_of_words_and_nothing_else",
        "see https://example.org/docs/how-to for the rest",
        "/city: Parameter city has wrong type: expected string, got number",
    ],
)
def test_plain_text_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


def test_values_are_bounded_in_length_breadth_and_depth() -> None:
    show = Redactor()
    assert len(show("ab " * MAX_LOG_TEXT)) == MAX_LOG_TEXT + 1
    assert len(show(list(range(MAX_LOG_ITEMS + 5)))) == MAX_LOG_ITEMS + 1
    assert len(show({str(n): n for n in range(MAX_LOG_ITEMS + 5)})) == MAX_LOG_ITEMS + 1
    circle: list[Any] = []
    circle.append(circle)
    assert "***" in str(show(circle))
    secret = "A1" * 40
    assert secret[:8] not in show("x " * (MAX_LOG_TEXT // 2 - 5) + secret), "nor half of one at the edge"


def test_further_keys_are_masked_when_the_application_names_them() -> None:
    found: list[dict[str, Any]] = []
    configure_logging(found.append, secret_keys=["Social Security"])
    emit(LogEvent.GATE_OPENED, tools={"social_security": "123", "city": "Porto"})
    assert found[0]["tools"] == {"social_security": "***", "city": "Porto"}


@pytest.mark.parametrize(
    "piece", ["a", "a@", "://", "password ", "eyJaaaa.", "-----BEGIN KEY", 'token="', "A1", "'", "\n"]
)
def test_no_text_takes_long_to_look_over(piece: str) -> None:
    """Looked at up to twice ``MAX_TEXT`` characters, by patterns that do not backtrack without end."""
    assert cpu_seconds(lambda: redact_text(piece * 10_000), 0.5) < 0.5


# ------------------------------------------------------------------ texts that are known are not searched again

PARTS = st.sampled_from(
    [
        "tool",
        "call_",
        "job_",
        "sk-",
        "ghp_",
        "eyJ",
        ".",
        "=",
        ": ",
        " is ",
        "password",
        "Bearer ",
        "0123456789abcdef",
        "https://u:p@h",
        "Z",
        "2026-11-27T06:28:19.123456Z",
        "-",
    ]
)
TEXTS = st.one_of(
    st.lists(PARTS, max_size=6).map("".join),
    st.from_regex(r"(call_|job_)?[0-9a-f]{14,34}", fullmatch=True),
    st.from_regex(r"[0-9-]{8,12}T[0-9:.]{6,22}Z", fullmatch=True),
    st.text(max_size=70),
)


def uncached(text: str, *, long: bool) -> str:
    redaction._CLEAN.clear()
    return redact_text(text, long=long)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXTS, st.booleans()), max_size=12))
def test_a_known_text_is_shown_as_one_that_is_searched(texts: list[tuple[str, bool]]) -> None:
    """Ids, times and texts in which nothing was found are not searched, in any order, for both kinds of fields."""
    everything = [(text, long) for text, _ in texts for long in (False, True)] + texts
    nothing = re.compile(r"(?!)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "_OWN_ID", nothing)
        patch.setattr(redaction, "_TIME", nothing)
        expected = [uncached(text, long=long) for text, long in everything]
    redaction._CLEAN.clear()
    assert [redact_text(text, long=long) for text, long in everything] == expected


def test_what_is_remembered_is_bounded_and_has_no_secret() -> None:
    redaction._CLEAN.clear()
    for number in range(5_000):
        redact_text(f"user {number}")
        redact_text(f"password={CANARY}{number}")
        redact_text("x" * 65 + str(number))
    assert 0 < len(redaction._CLEAN) <= 1_024
    assert all(CANARY not in text and len(text) <= 64 for text in redaction._CLEAN)


def test_a_secret_of_the_call_is_masked_also_in_a_known_text() -> None:
    """The control of the order: the secrets of the call come first."""
    assert redact_text("the word hunter22") == "the word hunter22"
    scrubber = Scrubber()
    scrubber.add_secrets(["hunter22"])
    token = CURRENT_SCRUBBER.set(scrubber)
    try:
        assert "hunter22" not in redact_text("the word hunter22")
    finally:
        CURRENT_SCRUBBER.reset(token)
