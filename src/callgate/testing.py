"""What you test your own hooks, tools and providers with. Import it in tests only; ``import callgate`` does not.

See ``docs/how-to/test-a-hook.md``. With pytest the same comes as fixtures, from the plugin ``pytest_callgate``.
"""

from callgate.providers.clock import Clock, FakeClock
from callgate.runtime.testing.cancel import Scenario, SweepFailed, SweepFinding, SweepReport, every_cancel_point
from callgate.runtime.testing.fault_calls import Faults, InjectedFault
from callgate.runtime.testing.faults import Faulty, FaultyStore, faults_of
from callgate.runtime.testing.ledger import Ledger
from callgate.runtime.testing.recording import Moment, RecordingHook
from callgate.runtime.testing.trace import Trace, TracedStep, trace
from callgate.runtime.testing.trace_log import TracedLease
from callgate.runtime.testing.virtual_time import FAR, LoopClock, Stuck, VirtualTime, run_virtual

__all__ = [
    "FAR",
    "Clock",
    "FakeClock",
    "Faults",
    "Faulty",
    "FaultyStore",
    "InjectedFault",
    "Ledger",
    "LoopClock",
    "Moment",
    "RecordingHook",
    "Scenario",
    "Stuck",
    "SweepFailed",
    "SweepFinding",
    "SweepReport",
    "Trace",
    "TracedLease",
    "TracedStep",
    "VirtualTime",
    "every_cancel_point",
    "faults_of",
    "run_virtual",
    "trace",
]
