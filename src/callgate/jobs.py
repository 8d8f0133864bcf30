"""Jobs: calls that run in a worker, and the engines that bring them there. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.providers.stores.jobs import JobState as JobState
    from callgate.runtime.faces.sync_jobs import SyncJob as SyncJob
    from callgate.runtime.hosts.celery import CeleryJobs as CeleryJobs
    from callgate.runtime.hosts.procrastinate import ProcrastinateJobs as ProcrastinateJobs
    from callgate.runtime.jobs.backend import JobBackend as JobBackend
    from callgate.runtime.jobs.embedded import EmbeddedJobs as EmbeddedJobs
    from callgate.runtime.jobs.jobs import JobHandle as JobHandle
    from callgate.runtime.jobs.jobs import JobStatus as JobStatus
    from callgate.runtime.jobs.options import Jobs as Jobs
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "CeleryJobs": "callgate.runtime.hosts.celery",
            "EmbeddedJobs": "callgate.runtime.jobs.embedded",
            "JobBackend": "callgate.runtime.jobs.backend",
            "JobHandle": "callgate.runtime.jobs.jobs",
            "JobState": "callgate.providers.stores.jobs",
            "JobStatus": "callgate.runtime.jobs.jobs",
            "Jobs": "callgate.runtime.jobs.options",
            "ProcrastinateJobs": "callgate.runtime.hosts.procrastinate",
            "SyncJob": "callgate.runtime.faces.sync_jobs",
        },
    )
