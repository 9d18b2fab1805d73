"""What the README and the package's own docstring show is what happens."""

import doctest
import re
from pathlib import Path

import pytest
import torch

import resolvent as rs

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
def test_the_blocks_run_one_after_the_other_and_print_what_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(block, names)
    run = names["run"]
    assert isinstance(run, rs.Run)
    assert run.history.gap.iloc[-1] < 1e-20
    trained = names["trained"]
    assert isinstance(trained, rs.Run)
    assert trained.history.test_accuracy.iloc[-1] > 0.95
    assert (tmp_path / "model.pt").is_file()
    shown = re.search(r"```\n(FedProx.*?)```", README, flags=re.DOTALL)
    assert shown is not None
    assert shown[1].strip() in capsys.readouterr().out


def test_the_two_commands_come_first() -> None:
    assert README.index("make demo") < README.index("make test") < README.index("```python")


def test_the_docstring() -> None:
    assert doctest.testmod(rs) == doctest.TestResults(failed=0, attempted=3)
