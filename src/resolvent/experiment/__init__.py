"""From a configuration to a run on disk: what it describes is built here, run, and resumed."""

from resolvent.experiment.build import Experiment, build
from resolvent.experiment.conduct import begin, begin_or_resume, find, fork, resume

__all__ = ["Experiment", "begin", "begin_or_resume", "build", "find", "fork", "resume"]
