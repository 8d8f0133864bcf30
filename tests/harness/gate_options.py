"""The keywords of ``Gate`` for helpers of tests: one flat name for each setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from callgate import Effects, Jobs, Options, Sessions, Suspensions

GROUPS: dict[str, tuple[Any, dict[str, str]]] = {
    "effects": (Effects(), {"durable": "durable"}),
    "options": (
        Options(),
        {
            name: name
            for name in (
                "clock",
                "closing",
                "drain",
                "hard_deadline",
                "idle",
                "formats",
                "lazy",
                "limits",
                "namespace",
                "no_schema_policy",
                "on_hydration",
                "on_repair",
                "resolve",
                "validator",
            )
        },
    ),
    "sessions": (Sessions(), {"session_ttl": "ttl", "max_sessions": "maximum"}),
    "suspensions": (Suspensions(), {"policy_version": "policy_version", "refresh_user": "refresh_user"}),
}


def gate_options(**flat: Any) -> dict[str, Any]:
    """Group flat names, such as ``clock`` and ``durable``, into the options objects of a gate; others stay."""
    made = dict(flat)
    for group, (default, names) in GROUPS.items():
        given = {names[name]: made.pop(name) for name in names if name in made}
        if given:
            made[group] = replace(made.get(group) or default, **given)
    if "job_options" in made:
        options: Jobs = made.pop("job_options")
        made["jobs"] = replace(options, engine=made.get("jobs"))
    if "open" in made:
        made["allow_unguarded"] = made.pop("open")
    return made
