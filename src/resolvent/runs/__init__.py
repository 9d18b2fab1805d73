"""A run on disk: its configuration, metrics, events and checkpoints, in a folder that outlives the process.

runs/<id>/config.toml      what was asked for, with every default filled in
          about.json       the problem, what the configuration solves, versions, git, machine
          metrics.csv      a row a recorded round, appended
          events.jsonl     what happened: started, resumed, interrupted, finished, ...
          checkpoints/     the whole State after the last two rounds, safetensors
          lock             held while a process writes here
"""

from resolvent.runs.folder import ENDED, Folder, create, find, folders

__all__ = ["ENDED", "Folder", "create", "find", "folders"]
