"""What the engines for jobs share: each belongs to one gate."""

from __future__ import annotations

from callgate.errors import RegistrationError
from callgate.runtime.jobs.jobs import Jobs


class OfOneGate:
    """The gate's side of a ``JobBackend``: it is given the jobs of one gate, and keeps to them."""

    _jobs: Jobs | None = None

    @property
    def jobs(self) -> Jobs:
        """The jobs that it moves.

        Raises:
            RegistrationError: it belongs to no gate.
        """
        if self._jobs is None:
            name = type(self).__name__
            raise RegistrationError(f"{name} belongs to no gate: Gate(jobs={name}(...))")
        return self._jobs

    def bind(self, jobs: Jobs) -> None:
        """See ``JobBackend``.

        Raises:
            RegistrationError: it belongs to another gate, or cannot move these.
        """
        if self._jobs is not None:
            raise RegistrationError(f"{type(self).__name__} belongs to another gate: make one for each")
        self.check(jobs)
        self._jobs = jobs

    def check(self, jobs: Jobs) -> None:
        """Whether it can move these.

        Raises:
            RegistrationError: it cannot.
        """
