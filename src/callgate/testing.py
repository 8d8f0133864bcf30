"""Helpers for tests of hooks, tools and providers. Each name is imported on first use.

See ``docs/how-to/test-a-hook.md`` and ``docs/how-to/test-with-a-scripted-model.md``. The pytest plugin
``pytest_callgate`` offers the same helpers as fixtures.
"""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.providers.clock import Clock as Clock
    from callgate.providers.clock import FakeClock as FakeClock
    from callgate.runtime.models.wire.reply import Usage as Usage
    from callgate.runtime.replay.replay import replay as replay
    from callgate.runtime.replay.report import ReplayReport as ReplayReport
    from callgate.runtime.testing.cancel import Scenario as Scenario
    from callgate.runtime.testing.cancel import SweepFailed as SweepFailed
    from callgate.runtime.testing.cancel import SweepFinding as SweepFinding
    from callgate.runtime.testing.cancel import SweepReport as SweepReport
    from callgate.runtime.testing.cancel import every_cancel_point as every_cancel_point
    from callgate.runtime.testing.fault_calls import Faults as Faults
    from callgate.runtime.testing.fault_calls import InjectedFault as InjectedFault
    from callgate.runtime.testing.faults import Faulty as Faulty
    from callgate.runtime.testing.faults import FaultyStore as FaultyStore
    from callgate.runtime.testing.faults import faults_of as faults_of
    from callgate.runtime.testing.fixtures import EveryCancelPoint as EveryCancelPoint
    from callgate.runtime.testing.fixtures import OpenScriptedModel as OpenScriptedModel
    from callgate.runtime.testing.fixtures import TraceCall as TraceCall
    from callgate.runtime.testing.lease_ledger import LeaseLedger as LeaseLedger
    from callgate.runtime.testing.model.requests import GivenResult as GivenResult
    from callgate.runtime.testing.model.requests import Message as Message
    from callgate.runtime.testing.model.requests import ModelRequest as ModelRequest
    from callgate.runtime.testing.model.requests import OfferedTool as OfferedTool
    from callgate.runtime.testing.model.requests import SeenCall as SeenCall
    from callgate.runtime.testing.model.requests import SeenThought as SeenThought
    from callgate.runtime.testing.model.script import Call as Call
    from callgate.runtime.testing.model.script import Fault as Fault
    from callgate.runtime.testing.model.script import Part as Part
    from callgate.runtime.testing.model.script import RawArguments as RawArguments
    from callgate.runtime.testing.model.script import Say as Say
    from callgate.runtime.testing.model.script import Stop as Stop
    from callgate.runtime.testing.model.script import Think as Think
    from callgate.runtime.testing.model.scripted import ScriptedModel as ScriptedModel
    from callgate.runtime.testing.recording import Moment as Moment
    from callgate.runtime.testing.recording import RecordingHook as RecordingHook
    from callgate.runtime.testing.trace import Trace as Trace
    from callgate.runtime.testing.trace import TracedStep as TracedStep
    from callgate.runtime.testing.trace import trace as trace
    from callgate.runtime.testing.trace_log import TracedLease as TracedLease
    from callgate.runtime.testing.virtual_time import FAR as FAR
    from callgate.runtime.testing.virtual_time import LoopClock as LoopClock
    from callgate.runtime.testing.virtual_time import Stuck as Stuck
    from callgate.runtime.testing.virtual_time import VirtualTime as VirtualTime
    from callgate.runtime.testing.virtual_time import run_virtual as run_virtual
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
