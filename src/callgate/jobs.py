"""Jobs: calls that run in a worker, and the engines that bring them there. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.providers.stores.jobs import JobState as JobState
    from callgate.runtime.hosts.celery import CeleryJobs as CeleryJobs
    from callgate.runtime.hosts.dbos import call_as_step as call_as_step
    from callgate.runtime.hosts.procrastinate import ProcrastinateJobs as ProcrastinateJobs
    from callgate.runtime.jobs.embedded import EmbeddedJobs as EmbeddedJobs
    from callgate.runtime.jobs.jobs import JobHandle as JobHandle
    from callgate.runtime.jobs.records import JobStatus as JobStatus
    from callgate.runtime.options.job_engine import JobBackend as JobBackend
    from callgate.runtime.options.jobs import JobRetries as JobRetries
    from callgate.runtime.options.jobs import Jobs as Jobs
    from callgate.runtime.options.schedule import Schedule as Schedule
    from callgate.runtime.suspensions.resolution import CallOutcome as CallOutcome
    from callgate.runtime.suspensions.resolution import CallState as CallState
    from callgate.runtime.sync.handles import SyncJob as SyncJob
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "CallOutcome": "callgate.runtime.suspensions.resolution",
            "CallState": "callgate.runtime.suspensions.resolution",
            "CeleryJobs": "callgate.runtime.hosts.celery",
            "EmbeddedJobs": "callgate.runtime.jobs.embedded",
            "JobBackend": "callgate.runtime.options.job_engine",
            "JobHandle": "callgate.runtime.jobs.jobs",
            "JobRetries": "callgate.runtime.options.jobs",
            "JobState": "callgate.providers.stores.jobs",
            "JobStatus": "callgate.runtime.jobs.records",
            "Jobs": "callgate.runtime.options.jobs",
            "ProcrastinateJobs": "callgate.runtime.hosts.procrastinate",
            "Schedule": "callgate.runtime.options.schedule",
            "SyncJob": "callgate.runtime.sync.handles",
            "call_as_step": "callgate.runtime.hosts.dbos",
        },
    )
