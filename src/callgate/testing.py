"""Helpers for tests of hooks, tools and providers. Each name is imported on first use.

See ``docs/how-to/test-a-hook.md`` and ``docs/how-to/test-with-a-scripted-model.md``. The pytest plugin
``pytest_callgate`` offers the same helpers as fixtures.
"""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.providers.clock import Clock, FakeClock
    from callgate.runtime.models.wire.reply import Usage
    from callgate.runtime.replay.replay import replay
    from callgate.runtime.replay.report import ReplayReport
    from callgate.runtime.testing.cancel import Scenario, SweepFailed, SweepFinding, SweepReport, every_cancel_point
    from callgate.runtime.testing.fault_calls import Faults, InjectedFault
    from callgate.runtime.testing.faults import Faulty, FaultyStore, faults_of
    from callgate.runtime.testing.fixtures import EveryCancelPoint, OpenScriptedModel, TraceCall
    from callgate.runtime.testing.lease_ledger import LeaseLedger
    from callgate.runtime.testing.model.requests import (
        GivenResult,
        Message,
        ModelRequest,
        OfferedTool,
        SeenCall,
        SeenThought,
    )
    from callgate.runtime.testing.model.script import Call, Fault, Part, RawArguments, Say, Stop, Think
    from callgate.runtime.testing.model.scripted import ScriptedModel
    from callgate.runtime.testing.recording import Moment, RecordingHook
    from callgate.runtime.testing.trace import Trace, TracedStep, trace
    from callgate.runtime.testing.trace_log import TracedLease
    from callgate.runtime.testing.virtual_time import FAR, LoopClock, Stuck, VirtualTime, run_virtual
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "FAR": "callgate.runtime.testing.virtual_time",
            "Call": "callgate.runtime.testing.model.script",
            "Clock": "callgate.providers.clock",
            "EveryCancelPoint": "callgate.runtime.testing.fixtures",
            "FakeClock": "callgate.providers.clock",
            "Fault": "callgate.runtime.testing.model.script",
            "Faults": "callgate.runtime.testing.fault_calls",
            "Faulty": "callgate.runtime.testing.faults",
            "FaultyStore": "callgate.runtime.testing.faults",
            "GivenResult": "callgate.runtime.testing.model.requests",
            "InjectedFault": "callgate.runtime.testing.fault_calls",
            "LeaseLedger": "callgate.runtime.testing.lease_ledger",
            "LoopClock": "callgate.runtime.testing.virtual_time",
            "Message": "callgate.runtime.testing.model.requests",
            "ModelRequest": "callgate.runtime.testing.model.requests",
            "Moment": "callgate.runtime.testing.recording",
            "OfferedTool": "callgate.runtime.testing.model.requests",
            "OpenScriptedModel": "callgate.runtime.testing.fixtures",
            "Part": "callgate.runtime.testing.model.script",
            "RawArguments": "callgate.runtime.testing.model.script",
            "RecordingHook": "callgate.runtime.testing.recording",
            "ReplayReport": "callgate.runtime.replay.report",
            "Say": "callgate.runtime.testing.model.script",
            "Scenario": "callgate.runtime.testing.cancel",
            "ScriptedModel": "callgate.runtime.testing.model.scripted",
            "SeenCall": "callgate.runtime.testing.model.requests",
            "SeenThought": "callgate.runtime.testing.model.requests",
            "Stop": "callgate.runtime.testing.model.script",
            "Stuck": "callgate.runtime.testing.virtual_time",
            "SweepFailed": "callgate.runtime.testing.cancel",
            "SweepFinding": "callgate.runtime.testing.cancel",
            "SweepReport": "callgate.runtime.testing.cancel",
            "Think": "callgate.runtime.testing.model.script",
            "Trace": "callgate.runtime.testing.trace",
            "TraceCall": "callgate.runtime.testing.fixtures",
            "TracedLease": "callgate.runtime.testing.trace_log",
            "TracedStep": "callgate.runtime.testing.trace",
            "Usage": "callgate.runtime.models.wire.reply",
            "VirtualTime": "callgate.runtime.testing.virtual_time",
            "every_cancel_point": "callgate.runtime.testing.cancel",
            "faults_of": "callgate.runtime.testing.faults",
            "replay": "callgate.runtime.replay.replay",
            "run_virtual": "callgate.runtime.testing.virtual_time",
            "trace": "callgate.runtime.testing.trace",
        },
    )

__all__ = [
    "FAR",
    "Call",
    "Clock",
    "EveryCancelPoint",
    "FakeClock",
    "Fault",
    "Faults",
    "Faulty",
    "FaultyStore",
    "GivenResult",
    "InjectedFault",
    "LeaseLedger",
    "LoopClock",
    "Message",
    "ModelRequest",
    "Moment",
    "OfferedTool",
    "OpenScriptedModel",
    "Part",
    "RawArguments",
    "RecordingHook",
    "ReplayReport",
    "Say",
    "Scenario",
    "ScriptedModel",
    "SeenCall",
    "SeenThought",
    "Stop",
    "Stuck",
    "SweepFailed",
    "SweepFinding",
    "SweepReport",
    "Think",
    "Trace",
    "TraceCall",
    "TracedLease",
    "TracedStep",
    "Usage",
    "VirtualTime",
    "every_cancel_point",
    "faults_of",
    "replay",
    "run_virtual",
    "trace",
]
