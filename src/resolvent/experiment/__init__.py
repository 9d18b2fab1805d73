"""From a configuration to a run on disk: what it describes is built here, run, and gone on with."""

from resolvent.experiment.build import Experiment, build
from resolvent.experiment.conduct import begin, find, fork, go_on, take

__all__ = ["Experiment", "begin", "build", "find", "fork", "go_on", "take"]
