"""Flower's superexec, which starts the server's side of runs, with the run's token in a file instead of an argument.

    python -P superexec.py [the arguments of flower-superexec]

Every account of a machine can read the arguments of its processes. The file is run by its path: the package around it
would import torch.
"""

from __future__ import annotations

import subprocess
import tempfile
from typing import Any


def launch(executor: Any, spec: Any) -> Any:
    """Start the process of a task. Its token is in a file without a name, which it inherits."""
    from flwr.supercore.constant import TASK_TYPE_TO_APPIO_API_ADDRESS_ARG, TASK_TYPE_TO_COMMAND
    from flwr.supercore.superexec.executor.types import LaunchResult

    with tempfile.TemporaryFile() as file:
        file.write(spec.token.encode())
        file.seek(0)
        command = [
            TASK_TYPE_TO_COMMAND[spec.task_type],
            *(TASK_TYPE_TO_APPIO_API_ADDRESS_ARG[spec.task_type], spec.runtime_api_address),
            *("--token-file", f"/dev/fd/{file.fileno()}"),
            *("--root-certificates", spec.root_certificates_path, "--parent-pid", str(spec.parent_pid)),
        ]
        subprocess.Popen(command, pass_fds=[file.fileno()])
    return LaunchResult.accepted()


def main() -> None:
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

    SubprocessExecutor.launch = launch  # type: ignore[method-assign, assignment]
    flower_superexec()


if __name__ == "__main__":
    main()
