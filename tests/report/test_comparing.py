"""Several schemes with several seeds: a table of means and spreads, bands, bytes, and names that tell runs apart."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import resolvent as rs
from command_line import SMALL, resolvent
from resolvent.iteration.registry import words
from resolvent.iteration.table import TABLE
from resolvent.report.curves import labels

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
HALF: dict[str, Any] = {"rounds": 6, "participation": 0.5}


def convex() -> Any:
    return rs.make_least_squares(users=4, dim=3, rows=9)


def network() -> Any:
    torch.manual_seed(0)
    x = torch.randn(3, 8, 2)
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    return rs.Neural(model, [(each, (each[:, 0] > 0).long()) for each in x], test=(x[0], (x[0, :, 0] > 0).long()))


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_the_table_has_means_and_standard_deviations_over_seeds() -> None:
    compared = rs.compare(convex(), {"a": rs.fedpi(0.02), "b": rs.fedprox(0.02)}, seeds=3, **HALF)
    for name, scheme in {"a": rs.fedpi(0.02), "b": rs.fedprox(0.02)}.items():
        alone = [rs.solve(convex(), scheme, seed=seed, **HALF) for seed in range(3)]
        last = [run.history.gap.iloc[-1] for run in alone]
        moved = [(run.history.bytes_up + run.history.bytes_down).sum() for run in alone]
        row = compared.table.loc[name]
        assert row["gap", "mean"] == pytest.approx(np.mean(last), rel=1e-12)
        assert row["gap", "std"] == pytest.approx(np.std(last, ddof=1), rel=1e-9)
        assert (row["bytes", "mean"], row["bytes", "std"]) == pytest.approx((np.mean(moved), np.std(moved, ddof=1)))
        assert (row["seeds", ""], row["status", ""]) == (3, "finished")
        assert [run.seed for run in compared.runs[name]] == [0, 1, 2]
    assert np.isnan(rs.compare(convex(), "fedpi", seeds=[0], rounds=3).table["gap", "std"].iloc[0])
    assert repr(compared).splitlines()[0].split()[:2] == ["seeds", "gap"]
    page = compared._repr_html_()
    assert "<table" in page
    assert 'src="data:image/png;base64,' in page


def test_a_name_with_several_runs_is_a_median_in_a_band_of_the_algorithms_colour() -> None:
    compared = rs.compare(convex(), {"mine": rs.fedpi(0.02), "theirs": rs.fedprox(0.02)}, **HALF)
    figure = compared.plot(x="bytes")
    (axis,) = figure.axes
    gaps = np.stack([run.history.gap for run in compared.runs["mine"]])
    line, band = axis.get_lines()[0], axis.collections[0]
    assert np.array_equal(line.get_ydata(), np.median(gaps, axis=0))
    spent = np.mean([(run.history.bytes_up + run.history.bytes_down).cumsum() for run in compared.runs["mine"]], axis=0)
    assert np.allclose(line.get_xdata(), spent, rtol=1e-12)
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (gaps.min(), gaps.max())
    assert [one.get_color() for one in axis.get_lines()] == [TABLE["fedpi"].colour, TABLE["fedprox"].colour]
    assert (legend(figure), axis.get_xlabel()) == (["mine", "theirs"], "bytes communicated")
    assert len(rs.plot(compared.runs["mine"], y="residual").axes[0].get_lines()) == 3  # a list: each run by itself
    assert legend(rs.plot(compared.runs["mine"])) == [f"FedPi, seed = {k}" for k in range(3)]


def test_runs_that_differ_in_a_part_alone_can_be_told_apart() -> None:
    mine = rs.fedpi(0.02)
    given: list[Any] = [mine, {"scheme": mine, "send": rs.TopK(0.5)}, {"scheme": mine, "send": rs.TopK(0.25)}]
    given += [{"scheme": mine, "meet": rs.CoordinateMedian()}, {"scheme": mine, "accelerate": rs.Momentum(0.5)}]
    given += [rs.fedpi(0.02, local=rs.GradientProx(3)), {"scheme": mine, "participation": rs.Bernoulli(0.5)}]
    compared = rs.compare(convex(), given, seeds=[0], rounds=3)
    names = list(compared.runs)
    assert names[:4] == ["FedPi", "FedPi, send top:0.5", "FedPi, send top:0.25", "FedPi, meet coordinate-median"]
    told = ["accelerate momentum:0.5", "steps = 3", "probability = 0.5"]
    assert all(words in name for words, name in zip(told, names[4:], strict=True)), names
    assert legend(rs.plot([runs[0] for runs in compared.runs.values()])) == names
    same = rs.solve(convex(), mine, rounds=3)
    assert legend(rs.plot([same, same])) == ["FedPi 1", "FedPi 2"]
    rows = [{"scheme": {"algorithm": name, "alpha": alpha}} for name, alpha in (("fedpi", 2), ("fedavg", 1))]
    assert labels(["FedPi", "FedAvg"], rows) == ["FedPi", "FedAvg"]  # alpha follows from the name
    own = [{"scheme": {"algorithm": "custom", "alpha": alpha}} for alpha in (1.5, 2.0)]
    sets = [{"problem": {"name": name, "users": users}} for name, users in (("logistic", 10), ("least-squares", 25))]
    assert labels(["FedPi", "FedPi"], sets) == ["FedPi, logistic", "FedPi, least-squares"]
    three = [*sets, {"problem": {"name": "logistic", "users": 5}}]
    assert labels(["FedPi"] * 3, three)[1:] == ["FedPi, least-squares, users = 25", "FedPi, logistic, users = 5"]
    assert labels(["mine", "mine"], own) == ["mine, alpha = 1.5", "mine, alpha = 2"]


def test_a_seed_draws_initial_weights_where_asked() -> None:
    problem, scheme = network(), rs.fedavg(0.1, steps=2)
    first, again, other = (rs.solve(problem, scheme, rounds=2, seed=seed, start="random") for seed in (0, 0, 1))
    assert torch.equal(first.model, again.model)
    assert not torch.equal(first.model, other.model)
    assert not torch.equal(problem.random_start(0), problem.start)
    weights, own = (problem.layout.split(row[None]) for row in (problem.random_start(7), problem.start))
    for name, rows in weights.items():  # within the bounds of torch's own distribution, and no two alike
        if name.startswith("1."):
            assert torch.equal(rows, own[name])  # BatchNorm begins with ones and zeros
        else:
            fan = 2 if name.startswith("0.") else 4
            assert float(rows.abs().max()) <= fan**-0.5
            assert not bool((rows == own[name]).any())
    before = torch.random.get_rng_state()
    runs = rs.solve_seeds(problem, scheme, [0, 1], rounds=2, start="random")
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(runs[0].model, first.model)
    assert torch.equal(runs[1].model, other.model)
    assert torch.equal(first.resume(rounds=4).model, rs.solve(problem, scheme, rounds=4, start="random").model)
    table = rs.compare(problem, [scheme], seeds=[0, 1], rounds=2, start="random").table
    assert table["value", "std"].iloc[0] > 0
    assert ("test_accuracy", "mean") in table


def test_metrics_that_were_asked_for_are_drawn_against_whole_rounds() -> None:
    compared = rs.compare(network(), [rs.fedavg(0.1)], seeds=[0], rounds=4, metrics=["perplexity", "brier"])
    figure = compared.plot()
    shown = [axis.get_ylabel() for axis in figure.axes]
    assert {"test loss", "test accuracy", "test perplexity", "test brier"} < set(shown)
    figure.canvas.draw()
    for axis in figure.axes:
        assert all(float(tick) == int(tick) for tick in axis.get_xticks())


def test_what_is_off_is_not_said() -> None:
    given = [rs.fedavg(0.1), rs.fedavg(0.1, local=rs.GradientSteps(2)), {"scheme": rs.fedavg(0.1), "anderson": 0}]
    compared = rs.compare(network(), given, seeds=[0], rounds=2)
    assert not [name for name in compared.runs if "momentum" in name or "nderson" in name]
    moved = rs.compare(network(), [*given[:2], rs.fedavg(0.1, local=rs.GradientSteps(2, momentum=0.5))], [0], rounds=2)
    assert ["momentum" in name for name in moved.runs] == [False, False, True]


def test_every_run_has_a_folder_of_its_own_for_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def values(folder: Path) -> list[float]:
        events = accumulator.EventAccumulator(str(folder))
        events.Reload()
        return [event.value for event in events.Scalars("value")]

    schemes = {"mine/1": rs.fedpi(0.02), "theirs": rs.fedprox(0.02)}
    compared = rs.compare(convex(), schemes, seeds=[0, 3], rounds=3, log=tmp_path / "all", participation=0.5)
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["mine-1", "theirs"]
    runs = rs.solve_seeds(convex(), rs.fedpi(0.02), [0, 3], rounds=3, log=str(tmp_path / "seeds"), participation=0.5)
    for folder, those in (("seeds", runs), ("all/mine-1", compared.runs["mine/1"])):
        for seed, run in zip((0, 3), those, strict=True):
            assert values(tmp_path / folder / f"FedPi-seed-{seed}") == pytest.approx(list(run.history.value), rel=1e-6)
    rs.compare(convex(), [rs.fedpi(0.02), rs.fedpi(0.01)], seeds=[0], rounds=2, log=tmp_path / "list")
    assert len(list((tmp_path / "list").glob("*/FedPi-seed-0"))) == 2


def test_a_module_draws_after_its_layers() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def reset_parameters(self) -> None:
            nn.init.constant_(self.layer.weight, 0.5)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    problem = rs.Neural(Small(), [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))] * 2)
    rows = problem.layout.split(problem.random_start(0)[None])
    assert bool((rows["layer.weight"] == 0.5).all())
    assert bool(rows["layer.bias"].any())


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Any) -> Any:
        return x @ self.weight


class Applied(nn.Module):
    """Like GPT-2: what `apply` does to its layers draws them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.apply(self._init_weights)

    def _init_weights(self, layer: nn.Module) -> None:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def own(layer: nn.Module | None = None) -> Any:
    return rs.Neural(nn.Sequential(layer or Own()), [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))] * 2)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: rs.compare(convex(), []), r"schemes is \[\], but a list of schemes"),
        (lambda: rs.compare(convex(), 3), "schemes is 3, but a list of schemes"),
        (lambda: rs.compare(convex(), [rs.fedpi(0.1), 3]), "schemes is 3 among them, but a scheme such as"),
        (lambda: rs.compare(convex(), {"a": {"send": 1}}), r"schemes\['a'\] is .*, but a scheme such as"),
        (lambda: rs.compare(convex(), ["fedpie"]), "fedpie"),
        (lambda: rs.compare(convex(), ["fedpi"], seeds=0), "seeds is 0, but a number of seeds"),
        (lambda: rs.compare(convex(), ["fedpi"], seeds=[0.5]), "seed is 0.5"),  # type: ignore[list-item]
        (lambda: rs.compare(convex(), ["fedpi"], sned=rs.TopK(0.5)), "did you mean send"),
        (lambda: rs.compare(3, ["fedpi"]), "problem is of type int"),
        (lambda: rs.Custom(2, 2, value=lambda W: W.astyp(1)), r"value failed \(Attribute.* called as value\(W\)"),
        (lambda: rs.Custom(1, 2, prox=[lambda u, eta: u.copi()]).prox(torch.ones(1, 2), 1.0), r"prox\[0\] failed"),
        (lambda: rs.plot({"a": []}), "runs is empty"),
        (lambda: rs.plot({"a": [3]}), "a int among them"),
        (lambda: rs.solve(convex(), "fedpi", start="random"), "LeastSquares has no layers"),
        (lambda: rs.solve(convex(), "fedpi", start="zeros"), "start is 'zeros', but numbers"),
        (lambda: rs.solve(own(), rs.fedavg(0.1), start="random"), r"0, a Own, has no reset_parameters\(\)"),
        (lambda: rs.solve(own(Applied()), rs.fedavg(0.1), start="random"), r"0, a Applied, .*_init_weights\(\), not"),
        (lambda: words("send", "top:0.1:3", float), r"'top:0.1:3', with 2 values, but top takes 1 value \(share\)"),
        (lambda: words("send", "top", float), r"send is 'top', with no values, but top takes 1 value \(share\)"),
        (lambda: words("send", "everything:1", float), "with 1 value, but everything takes none"),
        (lambda: words("send", "quantised:1:2:3", float), r"with 3 values, but quantised takes 0 to 1 value \(bits\)"),
        (lambda: words("send", "tpo:0.1", float), "send is 'tpo:0.1', but everything, top:SHARE"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_in_a_sentence(ask: Any, message: str) -> None:
    with pytest.raises(rs.InputError, match=message):
        ask()


def test_what_cannot_run_is_said_before_the_first_scheme_runs() -> None:
    done: list[int] = []
    schemes = [rs.fedpi(0.1), {"scheme": rs.fedpi(0.1), "participation": rs.FixedSize(9)}]
    with pytest.raises(rs.InputError, match="at most 4"):
        rs.compare(convex(), schemes, callback=lambda happened: done.append(happened.number))
    assert not done


def test_what_holds_for_every_seed_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rs.compare(convex(), [rs.fedprox(0.02)], seeds=range(4), rounds=2, progress=True)
    texts = [str(each.message) for each in caught]
    assert len(texts) == len(set(texts)) >= 1
    assert {each.filename for each in caught} == {__file__}


def test_functions_of_numpy_are_taken_where_they_say_so() -> None:
    c = np.array([[0.0, 1.0], [2.0, 3.0]])
    given: dict[str, Any] = {"grad": lambda W: W.numpy() - c, "value": lambda W: ((W.numpy() - c) ** 2).sum(axis=1) / 2}
    model = rs.solve(rs.Custom(2, 2, **given, lipschitz=1.0), rs.fedavg(0.5), rounds=60).model
    assert np.allclose(model.numpy(), c.mean(axis=0), rtol=0, atol=1e-12)  # 2^-60 of the first distance


def test_compare_draws_against_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    drawn: list[Any] = []
    monkeypatch.setattr("resolvent.report.draw", lambda curves, path, title, xs: drawn.append(list(xs)) or path)
    asked = ("compare", "least-squares", *SMALL, "--rounds", "3", "--algorithms", "fedpi", "--quiet")
    assert resolvent(*asked, "--x", "bytes,round").code == 0
    assert drawn == [["bytes", "round"]]
    page = (tmp_path / "runs" / "compare-least-squares.html").read_text()
    assert '"xs": {"bytes": "bytes communicated", "round": "round", "seconds": "seconds"}' in page
    refused = resolvent(*asked, "--x", "byte")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--x is 'byte', but round, seconds, bytes, or several" in refused.err


def test_networks_are_not_advised_to_take_another_scheme_blindly() -> None:
    for scheme in (rs.fedavg(0.1, steps=5), rs.fedprox(0.1, local=rs.GradientProx(3, lr=0.1))):
        assert "fedpi" not in str(rs.explain(scheme, network()))
    assert "take rs.fedpi" in str(rs.explain(rs.fedprox(0.1), convex()))
