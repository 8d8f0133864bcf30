"""What you test your own hooks, tools and providers with. Import it in tests only; ``import callgate`` does not.

See ``docs/how-to/test-a-hook.md`` and ``docs/how-to/test-with-a-scripted-model.md``. With pytest the same comes as
fixtures, from the plugin ``pytest_callgate``.
"""

from callgate.providers.clock import Clock, FakeClock
from callgate.runtime.models.wire.reply import Usage
from callgate.runtime.testing.cancel import Scenario, SweepFailed, SweepFinding, SweepReport, every_cancel_point
from callgate.runtime.testing.fault_calls import Faults, InjectedFault
from callgate.runtime.testing.faults import Faulty, FaultyStore, faults_of
from callgate.runtime.testing.lease_ledger import Ledger
from callgate.runtime.testing.model.requests import Asked, GivenResult, Message, OfferedTool, SeenCall, SeenThought
from callgate.runtime.testing.model.script import Call, Fault, Part, RawArguments, Say, Stop, Think
from callgate.runtime.testing.model.scripted import ScriptedModel
from callgate.runtime.testing.recording import Moment, RecordingHook
from callgate.runtime.testing.trace import Trace, TracedStep, trace
from callgate.runtime.testing.trace_log import TracedLease
from callgate.runtime.testing.virtual_time import FAR, LoopClock, Stuck, VirtualTime, run_virtual

__all__ = [
    "FAR",
    "Asked",
    "Call",
    "Clock",
    "FakeClock",
    "Fault",
    "Faults",
    "Faulty",
    "FaultyStore",
    "GivenResult",
    "InjectedFault",
    "Ledger",
    "LoopClock",
    "Message",
    "Moment",
    "OfferedTool",
    "Part",
    "RawArguments",
    "RecordingHook",
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
    "TracedLease",
    "TracedStep",
    "Usage",
    "VirtualTime",
    "every_cancel_point",
    "faults_of",
    "run_virtual",
    "trace",
]
