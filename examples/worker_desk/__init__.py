"""The order desk's calls in worker processes; the run kills one of them: ``make run-workers``."""
