"""Lazy imports for the public modules: a name is imported from the module that defines it on first use."""

import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar

FACES = (
    "callgate",
    "callgate.hooks",
    "callgate.models",
    "callgate.stores",
    "callgate.jobs",
    "callgate.mcp",
    "callgate.picking",
    "callgate.ports",
    "callgate.threads",
    "callgate.tools",
    "callgate.testing",
    "callgate.errors",
)
"""The public modules. An unknown name is looked up in all of them, for the import line in the error message."""

GUESSES = {
    "Agent": "from callgate import converse",
    "AgentExecutor": "from callgate import converse",
    "AnonymousUser": "from callgate import User",
    "BaseTool": "from callgate import tool",
    "Client": "from callgate.models import Anthropic, Gemini, Ollama, OpenAIChat, OpenAIResponses",
    "Context": "from callgate import ToolContext",
    "ControlFlow": "from callgate.errors import ControlRespond",
    "Depends": "from callgate import Provide",
    "FakeModel": "from callgate.testing import ScriptedModel",
    "FastMCP": "from callgate.mcp import server",
    "IToolExecutor": "from callgate.tools import ToolExecutor",
    "ToolResolveFn": "from callgate import Options",
    "defaultScorer": "from callgate.picking import keyword_overlap",
    "default_scorer": "from callgate.picking import keyword_overlap",
    "mapToolDefinitionToTool": "from callgate import codec",
    "convertToDefinition": "from callgate import ToolDefinition",
    "parseToolArguments": "from callgate import Gate",
    "executeTools": "from callgate.threads import ToolSystem",
    "toolCall": "from callgate.models import Client",
    "TOOL_EXECUTION": "from callgate.threads import Observation",
    "HTTPException": "from callgate import ToolError",
    "Inject": "from callgate import Provide",
    "Middleware": "from callgate import Hook",
    "MockModel": "from callgate.testing import ScriptedModel",
    "ModelRetry": "from callgate import ToolError",
    "Permission": "from callgate.hooks import Authorize",
    "PostgresStore": "from callgate.stores import SqlStore",
    "RateLimit": "from callgate.hooks import Quota",
    "RateLimitHook": "from callgate.hooks import Quota",
    "RateLimiter": "from callgate.hooks import Quota",
    "RunContext": "from callgate import ToolContext",
    "Semaphore": "from callgate.hooks import Concurrency",
    "SQLAlchemyStore": "from callgate.stores import SqlStore",
    "SQLiteStore": "from callgate.stores import SqlStore",
    "StructuredTool": "from callgate import as_tool",
    "TestClient": "from callgate.testing import ScriptedModel",
    "Tool": "from callgate import ToolRecord",
    "ToolException": "from callgate import ToolError",
    "ToolHook": "from callgate import Hook",
    "ToolHookStage": "from callgate import Stage",
    "ToolInvokeContext": "from callgate import InvokeContext",
    "ToolMessage": "from callgate import ToolResult",
    "ToolNode": "from callgate import Gate",
    "Toolkit": "from callgate import ToolRegistry",
    "function_tool": "from callgate import tool",
    "invokeTool": "from callgate import invoke_tool",
    "pickTools": "from callgate import pick_tools",
}
"""The line to write for the names of other frameworks and of the source documents."""


def lazy(module_name: str, table: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a public module, and set its ``__all__``.

    Write ``__getattr__, __dir__ = lazy(__name__, {...})`` in the ``else`` branch of ``if TYPE_CHECKING:``, so that type
    checkers read the imports of the other branch and still report an unknown name. ``import A as A`` exports a name to
    them.

    Args:
        module_name: the public module.
        table: by public name, the module that defines it.
    """
    module: Any = sys.modules[module_name]
    _Hints.tables[module_name] = table
    module.__path__ = getattr(module, "__path__", [])  # Python asks only packages for submodules, see ``_Hints``
    module.__all__ = sorted(table, key=_order)

    def __getattr__(name: str) -> Any:  # noqa: N807
        source = table.get(name)
        if source is None:
            return _submodule(module_name, name, table)
        value = getattr(import_module(source), name)
        setattr(module, name, value)  # the next access is a plain attribute
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(module), *table})

    return __getattr__, __dir__


def _order(name: str) -> tuple[int, str]:
    """Sort as the linter does: CONSTANTS, Classes, functions."""
    return 0 if name.isupper() else 1 if name[0].isupper() else 2, name


def _submodule(module_name: str, name: str, table: Mapping[str, str]) -> Any:
    """Import a submodule; ``from package import submodule`` asks for the attribute first."""
    if name.startswith("__"):
        raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
    wanted = f"{module_name}.{name}"
    try:
        return import_module(wanted)
    except _Hint as found:  # an AttributeError: hasattr() and getattr(module, name, default) ask, too
        raise AttributeError(str(found)) from None
    except ModuleNotFoundError as error:
        if error.name not in {wanted, module_name}:
            raise
    near = get_close_matches(name, table, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"module {module_name!r} has no attribute {name!r}{hint}")


_ROOMS = frozenset({"hooks", "providers", "runtime", "tools"})
_NO_LINKS = (
    "in a checkout its folder is a symbolic link. Let git make links (git config core.symlinks true) and check out again, "
    "or install the package"
)


class _Hint(ModuleNotFoundError):
    """A name that does not exist, with the line to write."""


class _Hints:
    """The last finder of imports: it answers ``from module import name`` and ``import module.name``.

    Python drops the text of an AttributeError from the first of them, and asks for a submodule of this name instead.
    """

    tables: ClassVar[dict[str, Mapping[str, str]]] = {}

    @classmethod
    def find_spec(cls, wanted: str, path: object = None, target: object = None) -> None:  # noqa: ARG003
        """Find nothing; raise the hint for a name of a public module."""
        module_name, _, name = wanted.rpartition(".")
        if module_name == "callgate" and name in _ROOMS:
            raise ModuleNotFoundError(f"{wanted} is not there: {_NO_LINKS}", name=wanted)
        table = cls.tables.get(module_name)
        line = None if table is None or name.startswith("__") or name in table else _line_for(module_name, name, table)
        if line is not None:
            raise _Hint(f"module {module_name!r} has no {name!r}; write: {line}", name=module_name)


sys.meta_path.append(_Hints)


def _line_for(module_name: str, name: str, table: Mapping[str, str]) -> str | None:
    """Return the line to write for a name of another public module, of another framework, or nearly of this module."""
    for face in FACES:
        if face != module_name and name in _exports(face):
            return f"from {face} import {name}"
    if name in GUESSES:
        return GUESSES[name]
    spelled = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # the source documents spell names in camel case
    for face in (module_name, *FACES):
        for meant in (spelled.lower(), spelled.upper()):
            if spelled != name and meant in _exports(face):
                return f"from {face} import {meant}"
    near = get_close_matches(name, table, n=1, cutoff=0.85)
    return f"from {module_name} import {near[0]}" if near else None


def _exports(face: str) -> list[str]:
    try:
        module = import_module(face)
    except ModuleNotFoundError:
        return []
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == face)
    return list(getattr(module, "__all__", own))
