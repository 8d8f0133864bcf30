"""The order desk's calls in worker processes, one of which is killed: ``make run-workers``."""
