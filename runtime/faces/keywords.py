"""Messages for keywords that a signature does not have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec

from callgate.tools.naming import did_you_mean

P = ParamSpec("P")

GATE_KEYWORDS = {
    "auth": "...) without it, and callgate.asgi(gate, authenticate=...",
    "authenticate": "...) without it, and callgate.asgi(gate, authenticate=...",
    "clock": "options=Options(clock=...)",
    "database": "store=...",
    "debug": 'mode="development"',
    "dependencies": "provide={token: factory}",
    "dev": 'mode="development"',
    "durable": "effects=Effects(durable=...)",
    "hard_deadline": "options=Options(hard_deadline=True)",
    "hooks_by_stage": "hooks=[{stage: [hook, ...]}]",
    "job_options": "jobs=Jobs(...)",
    "lazy": "options=Options(lazy=True)",
    "limits": "options=Options(limits=...)",
    "max_sessions": "sessions=Sessions(maximum=...)",
    "middleware": "hooks=[...]",
    "middlewares": "hooks=[...]",
    "open": "allow_unguarded=True",
    "policy_version": "suspensions=Suspensions(policy_version=...)",
    "providers": "provide={token: factory}",
    "refresh_user": "suspensions=Suspensions(refresh_user=...)",
    "resolve": "options=Options(resolve=...)",
    "retries": "hooks=[Retry(3)]",
    "session_ttl": "sessions=Sessions(ttl=...)",
    "timeout": "deadline=...",
    "unsafe": "allow_unguarded=True",
    "validator": "options=Options(validator=...)",
}
"""The arguments to write in place of keywords of ``Gate`` that callers guess."""


def explain_keywords(lines: Mapping[str, str]) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Refuse unknown keywords with the line to write instead; the signature stays as it is.

    Args:
        lines: the replacement for each keyword that callers are likely to guess.
    """

    def decorate(init: Callable[P, None]) -> Callable[P, None]:
        known = inspect.signature(init).parameters
        owner = init.__qualname__.partition(".")[0]

        @functools.wraps(init)
        def checked(*args: P.args, **kwargs: P.kwargs) -> None:
            for name in kwargs:
                if name not in known:
                    hint = f"; write {owner}({lines[name]})" if name in lines else did_you_mean(name, known)
                    raise TypeError(f"{owner}() has no parameter {name!r}{hint}")
            init(*args, **kwargs)

        return checked

    return decorate
