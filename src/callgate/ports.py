"""Parts of a port, which puts a gate behind another framework or protocol. Each name is imported on first use.

See ``docs/how-to/write-a-port.md``.
"""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.hooks.state.facts import Consumer as Consumer
    from callgate.runtime.models.wire.names import NameMap as NameMap
    from callgate.runtime.models.wire.result_text import result_text as result_text
    from callgate.runtime.pipeline.streams import Event as Event
    from callgate.runtime.pipeline.streams import Events as Events
    from callgate.runtime.pipeline.streams import Partial as Partial
    from callgate.runtime.pipeline.streams import Progress as Progress
    from callgate.runtime.pipeline.streams import Result as Result
    from callgate.tools.record import Style as Style
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Consumer": "callgate.hooks.state.facts",
            "Event": "callgate.runtime.pipeline.streams",
            "Events": "callgate.runtime.pipeline.streams",
            "NameMap": "callgate.runtime.models.wire.names",
            "Partial": "callgate.runtime.pipeline.streams",
            "Progress": "callgate.runtime.pipeline.streams",
            "Result": "callgate.runtime.pipeline.streams",
            "Style": "callgate.tools.record",
            "result_text": "callgate.runtime.models.wire.result_text",
        },
    )
