"""A run outlives its process: killed at any moment, it goes on and ends with the bits it would have had."""

import json
import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import FORKS, Process, hold
from resolvent import config, experiment
from resolvent.errors import InputError, StorageError
from resolvent.iteration import checkpoint
from resolvent.runs import Folder, checkpoints, create, find, folders
from resolvent.runs.recorder import Recorder
from resolvent.solving.recording import Entry, MonitorState

SMALL = {"problem": {"name": "least-squares", "users": 4, "dim": 6, "rows": 12}, "scheme": {"eta": 0.02}}
FEDPI = SMALL | {"run": {"rounds": 40}, "participation": {"probability": 0.6}}
CASES = {
    "sampled, Anderson": FEDPI | {"anderson": {"memory": 2}},
    "shared u": SMALL | {"scheme": {"algorithm": "fedprox", "eta": 0.02}, "run": {"rounds": 40, "average": "suffix"}},
    "automatic eta": SMALL | {"scheme": {"eta": "auto"}, "run": {"rounds": 40, "every": 7}},
    "Newton": {"problem": {"name": "logistic", "users": 3, "dim": 4, "rows": 20}, "run": {"rounds": 40}},
    "minibatches": SMALL | {"scheme": {"algorithm": "fedavg", "eta": 0.002}, "local": {"steps": 2, "batch": 5}},
    "stops early": SMALL | {"stop": {"gap": 1e-8}, "run": {"rounds": 90, "every": 4}},
    "diverges": SMALL | {"scheme": {"algorithm": "fedavg", "eta": 0.4}, "run": {"rounds": 40}},
    "diverges late": SMALL | {"scheme": {"algorithm": "fedavg", "eta": 0.1}, "run": {"rounds": 400}},
    "diverges, seldom recorded": SMALL
    | {"scheme": {"algorithm": "fedavg", "eta": 0.1}, "run": {"rounds": 400, "every": 3}},
    "ends above its start": SMALL | {"scheme": {"algorithm": "fedavg", "eta": 0.1}, "run": {"rounds": 30}},
}


class Killed(BaseException):
    """What a test raises where a process would be killed: nothing in the program may catch it."""


def build(tree: dict[str, Any]) -> experiment.Experiment:
    return experiment.build(config.read(tree))


def everything(run: Folder) -> tuple[dict[str, torch.Tensor], dict[str, Any], str]:
    """All that a run computed: its last State, the watch's memory and its rows, but for the time it took."""
    found, complaints = checkpoints.newest(run.checkpoints)
    assert found is not None
    assert not complaints
    timed = dict.fromkeys(("run", "metrics", "metrics_sha256"))  # rows hold seconds
    numbers = found.numbers | timed | {"pulse": MonitorState(*found.numbers["pulse"])._replace(seconds=0.0)}
    return found.tensors, numbers, run.history().drop(columns="seconds").to_csv()


def same(a: Folder, b: Folder) -> bool:
    (tensors, numbers, rows), (others, other_numbers, other_rows) = everything(a), everything(b)
    bits = all(t.numpy().tobytes() == others[name].numpy().tobytes() for name, t in tensors.items())
    return tensors.keys() == others.keys() and bits and repr(numbers) == repr(other_numbers) and rows == other_rows


def go_on_until_it_ends(run: Folder, monkeypatch: pytest.MonkeyPatch, survives: list[int]) -> int:
    """Resume a run, killed again after as many system calls as `survives` says; how often it was killed."""
    kills = 0
    for calls in survives:
        with monkeypatch.context() as patch:
            left = [calls]

            def count(original: Any, left: Any = left) -> Any:
                def call(*arguments: Any, **keywords: Any) -> Any:
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed
                    return original(*arguments, **keywords)

                return call

            for name in ("fsync", "write", "ftruncate"):
                patch.setattr(os, name, count(getattr(os, name)))
            patch.setattr(Path, "replace", count(Path.replace))
            patch.setattr(Path, "unlink", count(Path.unlink))
            try:
                experiment.resume(run, progress=False)
                return kills
            except Killed:
                kills += 1
    experiment.resume(run, progress=False)
    return kills


@pytest.mark.parametrize("name", CASES)
def test_killed_between_any_two_system_calls_it_ends_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment.begin(build(CASES[name]), tmp_path / "whole", progress=False)
    (whole,) = folders(tmp_path / "whole")
    rng = random.Random(name)
    kills = 0
    with pytest.MonkeyPatch.context() as patch:  # the first process gets no further than its folder
        patch.setattr(experiment.conduct, "drive", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            experiment.begin(build(CASES[name]), tmp_path / "torn", progress=False)
    (torn,) = folders(tmp_path / "torn")
    kills = go_on_until_it_ends(torn, monkeypatch, [rng.randrange(1, 40) for _ in range(30)])
    assert kills >= 1
    assert torn.status == whole.status
    assert torn.events[-1]["reason"] == whole.events[-1]["reason"]
    assert same(whole, torn)


@pytest.mark.parametrize(("kills", "rounds"), [(3, 400), pytest.param(20, 4000, marks=pytest.mark.slow)])
def test_sigkill_at_random_moments(kills: int, rounds: int, tmp_path: Path) -> None:
    asked = ["least-squares", "--users", "4", "--dim", "6", "--rows", "12", "--eta", "0.02", "--rounds", str(rounds)]
    asked += ["--participation", "0.6", "--anderson", "2", "--quiet"]
    assert Process("run", *asked, "--out", tmp_path / "whole").wait(300) == 0
    (whole,) = folders(tmp_path / "whole")
    took = whole.history()["seconds"].iloc[-1]
    rng, moments = random.Random(0), 0
    done: list[int] = []
    process = Process("run", *asked, "--out", tmp_path / "torn")
    deadline = time.monotonic() + 480
    while moments < kills and time.monotonic() < deadline:
        found = wait_for_progress(tmp_path / "torn", process, done[-1] if done else 0)
        if found is None:
            break
        time.sleep(rng.random() * min(took / 10, 0.15))
        process.kill()
        process.wait()
        moments += 1
        done.append(found.state().round)
        process = Process("resume", found.id, "--quiet", "--out", tmp_path / "torn")
    assert process.wait(timeout=480) == 0
    (torn,) = folders(tmp_path / "torn")
    assert moments == kills
    assert done == sorted(done)
    assert len(set(done)) > kills / 2
    assert same(whole, torn)
    assert [event["kind"] for event in torn.events] == ["started", *["resumed"] * kills, "finished"]


def wait_for_progress(out: Path, process: Process, beyond: int) -> Folder | None:
    """The run, once this process has written a checkpoint of its own; None if it has ended."""
    while process.poll() is None:
        for run in folders(out):
            newest = max((int(path.name[:8]) for path in run.checkpoints.glob("[0-9]*")), default=0)
            if newest > beyond:
                return run
        time.sleep(0.005)
    return None


def test_at_most_the_round_in_flight_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_at_10(recorder: Any, happened: Any, *rest: Any) -> Any:
        if happened.number == 11:
            raise Killed
        return keep(recorder, happened, *rest)

    keep = Recorder.__call__
    monkeypatch.setattr(Recorder, "__call__", stop_at_10)
    with pytest.raises(Killed):
        experiment.begin(build(FEDPI), tmp_path, progress=False)
    (run,) = folders(tmp_path)
    assert run.state().round == 10
    assert run.history()["round"].tolist() == list(range(1, 11))
    assert run.status == "killed"


def interrupted(tree: dict[str, Any], out: Path, at: int = 10) -> Folder:
    """A run that Ctrl-C ended in the round after `at`."""
    keep = Recorder.__call__

    def press(recorder: Any, happened: Any, *rest: Any) -> Any:
        if happened.number == at + 1:
            raise KeyboardInterrupt
        return keep(recorder, happened, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "__call__", press)
        outcome = experiment.begin(build(tree), out, progress=False)
    assert outcome.status == "interrupted"
    return outcome.run


def test_ctrl_c_leaves_a_run_that_can_go_on(tmp_path: Path) -> None:
    run = interrupted(FEDPI, tmp_path / "torn")
    assert run.status == "interrupted"
    assert experiment.resume(run, progress=False).status == "finished"
    assert same(experiment.begin(build(FEDPI), tmp_path / "whole", progress=False).run, run)


def test_a_long_memory_keeps_its_order(tmp_path: Path) -> None:
    """With more than ten past points their numbers have two digits, and text would sort 10 before 2."""
    problem = {"name": "least-squares", "users": 4, "dim": 40, "rows": 60}
    tree = {"problem": problem, "scheme": {"eta": 1e-3}, "run": {"rounds": 30}, "anderson": {"memory": 12}}
    run = interrupted(tree, tmp_path / "torn", at=20)
    past = run.state().parts.accelerate
    assert len(past.points) > 10
    tensors, numbers = checkpoint.pack(run.state())  # type: ignore[arg-type]
    again = checkpoint.unpack(dict(sorted(tensors.items())), numbers).parts.accelerate
    assert all(torch.equal(a, b) for a, b in zip(past.points, again.points, strict=True))
    assert experiment.resume(run, progress=False).status == "finished"
    assert same(experiment.begin(build(tree), tmp_path / "whole", progress=False).run, run)


def test_a_waiting_checkpoint_is_written_on_ctrl_c(tmp_path: Path) -> None:
    run = interrupted(FEDPI | {"store": {"checkpoint": 3600.0}}, tmp_path)
    assert run.state().round == 10


def test_any_corrupted_byte_is_noticed(tmp_path: Path) -> None:
    whole = experiment.begin(build(FEDPI), tmp_path / "whole", progress=False).run
    run = interrupted(FEDPI, tmp_path / "torn")
    newest = max(run.checkpoints.iterdir())
    content, rng = newest.read_bytes(), random.Random(1)
    places = [0, 7, 8, len(content) - 1, *(rng.randrange(len(content)) for _ in range(60))]
    for place in places:
        torn = bytearray(content)
        torn[place] ^= 1 << rng.randrange(8)
        newest.write_bytes(torn)
        found, complaints = checkpoints.newest(run.checkpoints)
        assert found is not None
        assert found.round == 9
        assert "damaged" in complaints[0]
    newest.write_bytes(content[: len(content) // 2])  # torn
    outcome = experiment.resume(run, progress=False)
    assert any("damaged" in words for words in outcome.messages)
    assert same(whole, run)


def test_with_no_good_checkpoint_the_run_begins_again_and_ends_the_same(tmp_path: Path) -> None:
    whole = experiment.begin(build(FEDPI), tmp_path / "whole", progress=False).run
    run = interrupted(FEDPI, tmp_path / "torn")
    for path in run.checkpoints.iterdir():
        path.write_bytes(b"nothing")
    assert len(experiment.resume(run, progress=False).messages) == 2
    assert same(whole, run)


def test_metrics_that_were_cut_are_noticed(tmp_path: Path) -> None:
    whole = experiment.begin(build(FEDPI), tmp_path / "whole", progress=False).run
    run = interrupted(FEDPI, tmp_path / "torn")
    run.metrics.write_bytes(run.metrics.read_bytes()[:300])
    assert "shorter" in experiment.resume(run, progress=False).messages[0]
    assert same(whole, run)


def test_the_last_two_checkpoints_are_kept_and_nothing_else(tmp_path: Path) -> None:
    run = experiment.begin(build(FEDPI), tmp_path, progress=False).run
    assert [path.name[:8] for path in sorted(run.checkpoints.iterdir())] == ["00000039", "00000040"]


def test_a_run_that_diverged_leaves_its_best_state(tmp_path: Path) -> None:
    run = experiment.begin(build(CASES["diverges late"]), tmp_path, progress=False).run
    history = run.history()
    best = history.loc[history.value.idxmin()]  # type: ignore[call-overload]
    assert run.status == "diverged"
    assert run.state().round == best["round"] == run.row()["round"] == run.events[-1]["round"]
    assert f"the state after round {run.state().round}, of value {best.value:.6g}," in run.events[-1]["reason"]
    assert history["round"].iloc[-1] > best["round"] + 10
    start = experiment.begin(build(CASES["diverges"]), tmp_path, progress=False).run
    assert start.state().round == 0
    assert not start.model().any()
    assert start.row() == {}


def test_a_run_that_ends_above_its_start_says_so(tmp_path: Path) -> None:
    outcome = experiment.begin(build(CASES["ends above its start"]), tmp_path, progress=False)
    assert outcome.status == "finished"
    assert outcome.reason.startswith("30 rounds; the value rose from ")


@pytest.mark.parametrize("name", ["sampled, Anderson", "diverges", "stops early"])
def test_what_has_ended_is_left_alone(name: str, tmp_path: Path) -> None:
    run = experiment.begin(build(CASES[name]), tmp_path, progress=False).run
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    outcome = experiment.resume(run, progress=False)
    assert outcome.messages == (f"run {run.id} has {run.status} already, verified by its checksums",)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == files


def test_a_second_process_is_told_who_holds_the_run(tmp_path: Path) -> None:
    run = interrupted(FEDPI, tmp_path)
    process = FORKS.Process(target=hold, args=(str(run.path),), daemon=True)
    process.start()
    try:
        holder = run.path / "holder.json"
        while not holder.exists() or str(process.pid) not in holder.read_text():
            assert process.is_alive()
            time.sleep(0.01)
        assert run.status == "running"
        with pytest.raises(InputError, match=f"is being written by process {process.pid} on "):
            experiment.resume(run, progress=False)
    finally:
        process.kill()
        process.join()
    assert run.status == "interrupted"  # the lock died with its process
    assert experiment.resume(run, progress=False).status == "finished"


def test_a_full_disk_ends_with_one_sentence_and_an_intact_run(tmp_path: Path) -> None:
    whole = experiment.begin(build(FEDPI), tmp_path / "whole", progress=False).run
    run = interrupted(FEDPI, tmp_path / "torn")
    limits, size = resource.getrlimit(resource.RLIMIT_FSIZE), run.metrics.stat().st_size
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, limits[1]))  # room for a part of a row
    try:
        with pytest.raises(StorageError, match=r"cannot be written \(File too large\); what was done is stored"):
            experiment.resume(run, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert run.state().round == 10
    assert not list(run.checkpoints.glob(".*"))
    assert experiment.resume(run, progress=False).status == "finished"
    assert same(whole, run)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be written .*--out"):
        experiment.begin(build(FEDPI), tmp_path / "file" / "runs", progress=False)


def test_data_that_changed_since_is_noticed(tmp_path: Path) -> None:
    lines = [f"{1 if k % 3 else -1} 1:{k % 5} 2:{k % 7}" for k in range(60)]
    (tmp_path / "data.libsvm").write_text("\n".join(lines))
    tree = {"problem": {"name": "logistic", "data": str(tmp_path / "data.libsvm"), "users": 3}, "run": {"rounds": 20}}
    run = interrupted(tree, tmp_path / "torn")
    assert len(run.config["problem"]["sha256"]) == 64
    (tmp_path / "data.libsvm").write_text("\n".join(lines[:-1]))
    with pytest.raises(InputError, match="is not the file that this run began with"):
        experiment.resume(run, progress=False)
    assert run.status == "interrupted"


def test_runs_are_found_by_path_id_and_either_end_of_it(tmp_path: Path) -> None:
    run, other = (experiment.begin(build(FEDPI), tmp_path, progress=False).run for _ in range(2))
    for name in (str(run.path), run.id, run.id[-4:]):
        assert find(name, tmp_path).id == run.id
    with pytest.raises(InputError, match="may be any of"):
        find("fedpi", tmp_path)
    with pytest.raises(InputError, match=f"no run 'nothing'.*the latest is {other.id}"):
        find("nothing", tmp_path)
    with pytest.raises(InputError, match="there are no runs in"):
        find("nothing", tmp_path / "nowhere")


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    run = experiment.begin(build(FEDPI), tmp_path, progress=False).run
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"time": "2026')
    run.note("resumed")
    assert [event["kind"] for event in run.events] == ["started", "finished", "resumed"]
    with run.metrics.open("a") as file:
        file.write("41,0.02,3")
    assert run.history()["round"].iloc[-1] == 40


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    run = experiment.begin(build(FEDPI), tmp_path, progress=False).run
    about = json.loads((run.path / "about.json").read_text())
    assert about["problem"]["users"] == 4
    assert about["environment"]["packages"]["torch"] == torch.__version__
    assert about["explanation"]["solves"] == "original"
    assert config.read(run.config) == build(FEDPI).config


def test_no_pickle_anywhere(tmp_path: Path) -> None:
    run = experiment.begin(build(FEDPI), tmp_path, progress=False).run
    assert {path.suffix for path in run.path.rglob("*") if path.is_file()} <= {
        ".safetensors",
        ".toml",
        ".json",
        ".jsonl",
        ".csv",
        "",
    }
    state = run.state()
    tensors, numbers = checkpoint.pack(state)  # type: ignore[arg-type]
    assert state.round == 40
    assert numbers["round"] == 40
    assert set(tensors) >= {"u", "p", "w"}


@pytest.mark.parametrize(("problem", "command"), [("federation", "federate run --resume"), ("least-squares", "resume")])
def test_what_a_full_disk_advises_is_what_goes_on(problem: str, command: str, tmp_path: Path) -> None:
    """`resolvent resume` refuses runs of a federation, whose server goes on with them."""
    run = create(tmp_path, "x", f'[problem]\nname = "{problem}"\n\n[run]\nrounds = 3\n', {})
    recorder = Recorder(run, rounds=3)
    os.close(recorder._metrics._file)
    recorder._metrics._file = os.open("/dev/full", os.O_WRONLY)
    state = experiment.begin(experiment.build(config.read(FEDPI)), tmp_path / "other", progress=False).run.state()
    assert state is not None
    with pytest.raises(StorageError, match=f"make room, then `resolvent {command} {run.id}`"):
        recorder(Entry(state, {"round": 1, "gap": 0.5}, MonitorState()))
    recorder.close()
