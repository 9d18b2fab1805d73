"""From a configuration to a run on disk: what it describes is built here, run, and resumed."""

from resolvent.experiment.build import Experiment, build
from resolvent.experiment.conduct import begin, begin_or_resume, but_for_seed, find, fork, resume, run_together

__all__ = [
    "Experiment",
    "begin",
    "begin_or_resume",
    "build",
    "but_for_seed",
    "find",
    "fork",
    "resume",
    "run_together",
]
