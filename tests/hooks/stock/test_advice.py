"""Each advice that a stock hook prints for a guessed setting is run, and accepted."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from typing import Any

import pytest

import callgate.hooks
from callgate import CallgateError, Hook
from callgate.hooks.stock.options import OTHER_NAMES, _in_code

SCENE: dict[str, Any] = {
    **{name: getattr(callgate.hooks, name) for name in dir(callgate.hooks) if not name.startswith("_")},
    "timedelta": timedelta,
}
FIRST = {
    "Cache": "60", "Concurrency": "5", "OutputPolicy": "1000", "Quota": "'5/minute'", "Secrets": "{'key': lambda ctx: 'x'}",
    "Timeout": "5", "Authorize": "roles={'manager'}", "Redact": "'password'", "FeatureFlags": "{'callgate.x': True}",
}  # fmt: skip
"""What a hook needs besides the guessed setting."""
VALUES: dict[str, str] = {
    "by": "'user'", "decider_timeout": "1.0", "default": "True", "entry_tags": "['a']", "expires": "5.0",
    "failure_threshold": "3", "flag_timeout": "1.0", "limit": "5", "max_attempts": "2", "max_bytes": "1000", "max_probes": "1",
    "max_retry_after": "1.0", "names": "['password']", "on": "(ValueError,)", "on_provider_failure": "'allow'",
    "open_for": "5.0", "queue": "2", "queue_timeout": "1.0", "scope": "'use'", "seconds": "5", "source": "{'callgate.x': True}",
    "sources": "{'key': print}", "ttl": "60", "wait": "1", "write_timeout": "2.0",
}  # fmt: skip
"""A value that users of other libraries give to a setting."""
STOCK = [
    (name, kind)
    for name in dir(callgate.hooks)
    if not name.startswith("_")
    if inspect.isclass(kind := getattr(callgate.hooks, name))
    and issubclass(kind, Hook)
    and hasattr(kind.__init__, "__wrapped__")
]
GUESSES = [
    (name, setting, other)
    for name, kind in STOCK
    for setting in inspect.signature(kind).parameters
    for other in sorted(OTHER_NAMES.get(setting, ()))
    if other not in inspect.signature(kind).parameters and (name, other) != ("Deadline", "timeout")
]


def answer(line: str) -> str | None:
    """The message for a line; None if it is accepted."""
    try:
        eval(line, SCENE)
    except (TypeError, ValueError, CallgateError) as error:
        return str(error)
    return None


def advised(hook: str, message: str) -> str | None:
    """The line of an advice: a whole call, or a setting that is added to the call."""
    found = re.search(r"write (.+)$", message)
    if found is None:
        return None
    line = found.group(1)
    if line.startswith(f"{hook}("):
        return line
    first = FIRST.get(hook)
    return f"{hook}({', '.join(part for part in (first, line) if part)})"


@pytest.mark.parametrize(("hook", "setting", "other"), GUESSES, ids=["-".join(one) for one in GUESSES])
def test_the_advice_for_a_setting_of_another_library_is_accepted(hook: str, setting: str, other: str) -> None:
    first = FIRST.get(hook, "")
    is_first = setting in (next(iter(inspect.signature(SCENE[hook]).parameters)), "names", "deciders")
    guess = f"{hook}({'' if is_first or not first else first + ', '}{other}={VALUES[setting]})"
    message = answer(guess)
    if message is None:
        return  # an option of every hook, such as ``timeout``
    line = advised(hook, message)
    assert line is not None, f"{guess}: {message}"
    assert answer(line) is None, f"{guess} said {message!r}, and {line} says {answer(line)!r}"


AMOUNTS = ["max", "requests", "calls", "rate", "limit", "times", "amount", "max_calls"]
WINDOWS = ["per", "window", "seconds", "period", "interval", "time_window"]


@pytest.mark.parametrize("window", [60, 1, 0.5, "minute", timedelta(seconds=30)])
@pytest.mark.parametrize("per", WINDOWS)
@pytest.mark.parametrize("amount", ["", *AMOUNTS])
def test_a_limit_as_two_settings_is_answered_with_one_text(amount: str, per: str, window: Any) -> None:
    shown = f"timedelta(seconds={window.total_seconds()})" if isinstance(window, timedelta) else repr(window)
    message = answer(f"Quota({f'{amount}=' if amount else ''}100, {per}={shown})")
    assert message is not None
    line = advised("Quota", message)
    assert line is not None, message
    assert re.match(r"Quota\('[12]00/", line)
    assert answer(line) is None, f"{message} -> {answer(line)}"


@pytest.mark.parametrize(
    "guess", ["Quota(100, 60)", "Quota(per_minute=100)", "Quota(max='5/minute')", "Quota(per_hour=3)"]
)
def test_other_forms_of_a_limit_are_answered_with_one_text(guess: str) -> None:
    line = advised("Quota", answer(guess) or "")
    assert line is not None
    assert answer(line) is None


@pytest.mark.parametrize(("hook", "kind"), STOCK, ids=[name for name, _ in STOCK])
def test_too_many_settings_by_position_are_answered_with_the_number(hook: str, kind: Any) -> None:
    parameters = inspect.signature(kind).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return
    with pytest.raises(TypeError, match=rf"^{hook} takes 1 setting by position, and 3 were given; write "):
        kind(1, 2, 3)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ((ValueError,), "(ValueError,)"), ((ValueError, OSError), "(ValueError, OSError)"), (5, "5"), ("a", "'a'"),
        (len, "len"), (lambda: 1, "..."), (object(), "..."), ([1, 2], "[1, 2]"),
    ],
)  # fmt: skip
def test_a_value_in_an_advice_is_written_as_code(value: object, code: str) -> None:
    assert _in_code(value) == code
