"""A run on disk: its configuration, metrics, events and checkpoints, in a folder that outlives the process.

runs/<id>/config.toml      what was asked for, with every default filled in
          about.json       the problem, what the configuration solves, versions, git, machine
          SHA256SUMS       the checksums of these two
          metrics.csv      one row per recorded round, appended; its checksum is in every checkpoint
          events.jsonl     what happened: started, resumed, interrupted, finished, ...; a checksum in each line
          checkpoints/     the whole State after the last two rounds, safetensors
          lock             held while a process writes here
"""

from resolvent.runs.collection import create, find, folders, sound
from resolvent.runs.folder import ENDED, Folder, damaged

__all__ = ["ENDED", "Folder", "create", "damaged", "find", "folders", "sound"]
