"""Federated tables: sites agree on a schema before the first round, and the model is that of all rows together."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import resolvent as rs
from command_line import resolvent
from engines.fake_grid import FakeGrid
from resolvent import runs
from resolvent.data.sites import Reported, SiteTable, Terms, merge
from resolvent.engines.flower import packets
from resolvent.errors import InputError, RoundFailed
from resolvent.federation import keys, server_app, template
from resolvent.federation.project import Project, opened
from resolvent.federation.site import load

pytest.importorskip("flwr")

SITES = ("east", "north", "west")


def patients() -> pd.DataFrame:
    """Three hospitals, with holes in a column of numbers and in one of text."""
    frame = rs.data.hospitals()
    frame = frame[frame.hospital.isin(SITES)].sort_values("hospital", kind="stable").reset_index(drop=True)
    rng = np.random.default_rng(1)
    frame.loc[rng.random(len(frame)) < 0.1, "pressure"] = np.nan
    frame.loc[rng.random(len(frame)) < 0.1, "ward"] = None
    return frame


def project_of(folder: Path, frames: dict[str, pd.DataFrame], data: str, scheme: str = "") -> Project:
    """A project with a table per site, as `federate init --table` makes it."""
    project = template.write(folder / "trial", users=len(frames), table="ill")
    text = (project.path / "federation.toml").read_text()
    head, _, rest = text.partition("\n[data]")
    rest = rest.partition("\n[")[2]
    (project.path / "federation.toml").write_text(f"{head}\n[data]\n{data}\n[{rest}{scheme}")
    for name, frame in frames.items():
        keys.make_node(project, name)
        frame.to_csv(project.path / f"{name}.csv", index=False)
    return opened(project.path)


def grid_of(project: Project, memory: Path) -> FakeGrid:
    known = {name: key for key, name in keys.public_keys(project).items()}
    nodes = [load(project.path, {"name": n, "data": f"{n}.csv"}, memory / n) for n in sorted(known)]
    return FakeGrid(nodes, keys=[known[name] for name in sorted(known)])


def by_site(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(name): part.drop(columns="hospital") for name, part in frame.groupby("hospital")}


def run_of(project: Project, tmp_path: Path) -> rs.Run:
    folder = server_app.conduct(grid_of(project, tmp_path / "memory"), project, project.runs)
    return rs.open(folder.path)


@pytest.mark.parametrize(
    ("data", "more"),
    [
        ('target = "ill"\nimpute = "mean"', {"target": "ill", "impute": "mean"}),
        ('target = "age"\nimpute = "mean"', {"target": "age", "impute": "mean"}),
        ('target = "ward"\ndrop = ["pressure"]', {"target": "ward", "drop": ["pressure"]}),
    ],
    ids=["logistic", "least squares", "softmax"],
)
def test_it_is_the_model_of_one_table(tmp_path: Path, data: str, more: dict[str, Any]) -> None:
    """The preparation has the bits of one process, and the model its digits; columns may come in any order."""
    frame = patients()
    if more["target"] == "ward":
        frame = frame.dropna(subset=["ward"]).reset_index(drop=True)
    frames = by_site(frame)
    frames["north"] = frames["north"][sorted(frames["north"].columns)]
    run = run_of(project_of(tmp_path, frames, data), tmp_path)
    table = rs.data.from_frame(frame, user="hospital", standardise=True, **more)
    problem = table.problem()
    ours, theirs = run.description.preparation.as_dict(), table.preparation.as_dict()
    for once in (ours, theirs):
        del once["user"], once["dropped"]
    assert json.dumps(ours) == json.dumps(theirs)
    assert run.description.predictor == problem.predictor
    assert run.status == "stopped", run.reason
    w = rs.solve(problem, "fedpi", rounds=200, anderson=5, stop=rs.Stop(certificates=1e-10), progress=False).model
    assert np.allclose(run.model, w, rtol=0, atol=1e-5 * float(w.abs().max()))
    assert float(problem.gap(run.model.reshape(1, -1))[0]) <= 1e-8 * abs(problem.fstar)
    new = frame.dropna()
    fit = rs.solve(problem, "fedpi", rounds=200, anderson=5, progress=False)
    if more["target"] == "age":
        assert np.allclose(run.predict(new), fit.predict(new), rtol=1e-4)
    else:
        assert (run.predict(new) == fit.predict(new)).mean() > 0.999


@pytest.mark.parametrize(
    ("target", "asked", "by_class"),
    [("ill", "balanced", "balanced"), ("ill", "yes=4", {"yes": 4.0}), ("ward", "balanced", "balanced")],
)
def test_classes_count_as_in_one_table(tmp_path: Path, target: str, asked: str, by_class: Any) -> None:
    """Balanced over all sites, of which none has the shares of all."""
    frame = patients().dropna().reset_index(drop=True)
    run = run_of(project_of(tmp_path, by_site(frame), f'target = "{target}"\nclass_weight = "{asked}"'), tmp_path)
    table = rs.data.from_frame(frame, user="hospital", target=target, standardise=True)
    problem, plain = table.problem(class_weight=by_class), table.problem()
    at = run.model.reshape(1, -1)
    assert float(problem.gap(at)[0]) <= 1e-7 * abs(problem.fstar) < 1e-3 * float(plain.gap(at)[0])


def test_classes_of_sites_that_cannot_be_weighed_are_refused() -> None:
    frames = by_site(patients())
    for terms, words in (
        (Terms("age", impute="mean", class_weight="balanced"), "the target holds numbers"),
        (Terms("ill", impute="mean", class_weight="perhaps=2"), "the classes are no, yes"),
    ):
        with pytest.raises(InputError, match=words):
            merge(reported(frames, terms), terms)
    with pytest.raises(InputError, match="CLASS=NUMBER"):
        SiteTable(frames["east"], Terms("ill", class_weight="even"))
    told = SiteTable(frames["east"], Terms("ill", impute="mean", class_weight="balanced")).report()
    told["labels"]["counts"].pop()
    with pytest.raises(ValueError, match="number of rows for each class"):
        Reported.of(told)


def test_held_out_rows_are_judged_at_their_site(tmp_path: Path) -> None:
    frames = by_site(patients())
    run = run_of(project_of(tmp_path, frames, 'target = "ill"\nimpute = "mean"\ntest = 0.25'), tmp_path)
    own = run.user_metrics
    assert own is not None
    assert list(own.index) == list(SITES)
    rows, right = [], []
    for name in SITES:
        table = SiteTable(frames[name], Terms("ill", impute="mean", test=0.25))
        held = frames[name].reset_index(drop=True).loc[table.held_out]
        rows.append(len(held))
        right.append(float((run.predict(held) == held["ill"]).sum()))
        assert own.loc[name, "test_accuracy"] == pytest.approx(right[-1] / rows[-1], abs=1e-12)
    assert run.history["test_accuracy"].iloc[-1] == pytest.approx(sum(right) / sum(rows), abs=1e-12)


def test_a_run_that_was_left_goes_on_with_the_schema_it_agreed_on(tmp_path: Path) -> None:
    """To the same bits; and a process of a node that was started again finds the schema on its disk."""
    project = project_of(tmp_path, by_site(patients()), 'target = "ill"\nimpute = "mean"')

    class Killed(Exception):
        pass

    class Dying(FakeGrid):
        def push_messages(self, messages: Any) -> list[str]:
            messages = list(messages)
            if any(message.metadata.group_id == "6" for message in messages):
                raise Killed
            return super().push_messages(messages)

    whole = run_of(project, tmp_path / "whole")
    grid = grid_of(project, tmp_path / "memory")
    dying = Dying(grid.nodes, keys=grid.keys)
    with pytest.raises((Killed, RoundFailed)):
        server_app.conduct(dying, project, tmp_path / "runs")
    (left,) = (tmp_path / "runs").iterdir()
    again = grid_of(project, tmp_path / "memory")
    done = rs.open(server_app.conduct(again, project, tmp_path / "runs", left.name).path)
    assert np.array_equal(done.model, whole.model)
    third = grid_of(project, tmp_path / "memory").nodes[0]
    (schema,) = (tmp_path / "memory" / "east" / "schemas").iterdir()
    assert third._node(schema.stem).problem.dim == len(done.model)


def test_coefficients_are_exported_by_name_in_the_units_of_the_table(tmp_path: Path) -> None:
    """Of least squares they are those of an ordinary fit of the raw columns."""
    frame = patients().dropna()[["hospital", "age", "cholesterol", "smoker", "pressure"]].reset_index(drop=True)
    run = run_of(project_of(tmp_path, by_site(frame), 'target = "pressure"'), tmp_path)
    found = json.loads(run.export(tmp_path / "model.json").read_text())["in_units_of_the_table"]
    X = np.column_stack([np.ones(len(frame)), frame[["age", "cholesterol", "smoker"]].astype(float)])
    expected = np.linalg.lstsq(X, frame["pressure"].to_numpy(), rcond=None)[0]
    assert list(found) == ["(intercept)", "age", "cholesterol", "smoker"]
    assert np.allclose(list(found.values()), expected, rtol=1e-4)


def reported(frames: dict[str, pd.DataFrame], terms: Terms) -> dict[str, Reported]:
    """Over JSON, as they travel."""
    return {name: Reported.of(json.loads(json.dumps(SiteTable(f, terms).report()))) for name, f in frames.items()}


TERMS = Terms("ill", impute="mean")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f | {"north": f["north"].drop(columns="age")}, "column 'age' is missing on north"),
        (lambda f: f | {"north": f["north"].rename(columns={"age": "ages"})}, r"north \(is it 'ages' there\?\)"),
        (lambda f: f | {"west": f["west"].assign(bmi=1.0)}, "column 'bmi' is on west but not on east, north"),
        (lambda f: f | {"west": f["west"].assign(age="old")}, "column 'age' is text on west, but number"),
        (
            lambda f: f | {"west": f["west"].assign(ill=f["west"].ill.str.title() + " ")},
            "classes 'No ', 'no' differ in spelling alone .*'No ', 'Yes ' on west",
        ),
        (
            lambda f: {n: t.assign(ill=(t.ill == "yes").astype(int) + (n == "west")) for n, t in f.items()},
            r"two classes at most at each site, but 3 in all .*1, 2 on west.*say in data.problem",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_site_and_column(change: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        merge(reported(change(by_site(patients())), TERMS), TERMS)


def test_what_was_meant_is_taken() -> None:
    """Three classes in all, of which no site has more than two."""
    frames = {n: t.assign(ill=(t.ill == "yes").astype(int) + (n == "west")) for n, t in by_site(patients()).items()}
    meant = Terms("ill", impute="mean", problem="softmax")
    assert merge(reported(frames, meant), meant).preparation.classes == (0, 1, 2)


def test_categories_that_are_spelled_alike_are_pointed_out() -> None:
    frames = by_site(patients())
    frames["west"] = frames["west"].assign(ward=lambda f: f.ward.str.title())
    (remark,) = merge(reported(frames, TERMS), TERMS).remarks
    assert remark.startswith("'General', 'general' in 'ward' differ in spelling alone")


def test_a_site_is_told_what_works_in_a_federation() -> None:
    frame = pd.DataFrame({"id": [f"p{k}" for k in range(40)], "age": [None, *range(39)], "y": [0, 1] * 20})
    with pytest.raises(InputError) as several:
        SiteTable(frame, Terms(target="y"))
    passes = 'this passes, in [data] of federation.toml: drop = ["id"] and impute = "mean"'
    assert str(several.value).endswith(passes)
    with pytest.raises(InputError) as one:
        SiteTable(frame, Terms(target="y", drop=("id",)))
    assert str(one.value).endswith("its settings are in [data] of federation.toml")
    assert "--" not in str(several.value) + str(one.value)


def test_a_small_site_trains_with_all_it_has() -> None:
    told = SiteTable(by_site(patients())["west"][:2], Terms("age", impute="mean", test=0.2)).report()
    assert (told["rows"], told["held_out"]) == (2, 0)


def test_the_report_is_about_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what each site has measured, since its rows are not here; and below 1 MB."""
    data = 'target = "ill"\nimpute = "mean"\ntest = 0.25'
    run = run_of(project_of(tmp_path, by_site(patients()), data), tmp_path)
    monkeypatch.chdir(tmp_path / "trial")
    assert resolvent("report", "--to", "page.html").code == 0
    page = Path("page.html").read_text()
    assert run.user_metrics is not None
    assert len(page) < 1e6
    assert "added to the log odds of &#x27;yes&#x27;" in page
    for name, own in run.user_metrics.iterrows():
        assert f"<td>{name}</td><td>{own['test_accuracy']:.3f}</td>" in page


def test_the_report_says_what_a_reader_must_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other units at a site, in the page of one run and of several; what the figures of all are; the baselines."""
    frames = by_site(patients())
    frames["west"] = frames["west"].assign(cholesterol=frames["west"]["cholesterol"] / 38.67)
    project = project_of(tmp_path, frames, 'target = "ill"\nimpute = "mean"\ntest = 0.25')
    for _ in range(2):
        run_of(project, tmp_path)
    stored = runs.folders(project.runs)
    monkeypatch.chdir(tmp_path / "trial")
    remark = "the mean of &#x27;cholesterol&#x27; is "
    row = stored[0].row()
    for names in ([stored[0].id], [run.id for run in stored]):
        assert resolvent("report", *names, "--to", "page.html").code == 0
        assert remark in Path("page.html").read_text()
        if len(names) == 1:
            page = Path("page.html").read_text()
            assert f"<td>all</td><td>{row['test_accuracy']:.3f}</td><td>{row['test_auc']:.3f}</td>" in page
            assert "not that of all rows together" in page
            assert "Categories are compared with ward=general." in page
    weights = next(event["reason"] for event in stored[0].events if event["kind"] == "weights")
    assert weights.endswith(" rows): each f_i is a sum over its rows, so every row counts the same")


def test_what_is_said_of_a_run_holds_where_everybody_answers(tmp_path: Path) -> None:
    """Nobody is drawn, and no user sends a Hessian unless `curvature` is set."""
    run = run_of(project_of(tmp_path, by_site(patients()), 'target = "ill"\nimpute = "mean"'), tmp_path)
    words = str(run.explanation)
    assert "converges for convex f_i if a solution exists, while everybody answers" in words
    assert "sampling" not in words
    assert "Metric: the identity" in words


def test_all_complaints_are_made_at_once() -> None:
    frames = by_site(patients())
    frames["north"] = frames["north"].drop(columns="age")
    frames["west"] = frames["west"].assign(bmi=1.0)
    with pytest.raises(InputError, match=r"'age' is missing on north.*'bmi' is on west"):
        merge(reported(frames, TERMS), TERMS)


def test_a_site_of_ten_thousand_columns_holds_nobody_up() -> None:
    """Which of them a missing column may be takes minutes to look for, if it is done for all of them."""
    told = SiteTable(by_site(patients().dropna())["west"], TERMS).report()
    column = next(each for each in told["columns"] if each["kind"] == "number")
    honest = told | {"columns": [column | {"name": f"column {k}"} for k in range(100)]}
    other = told | {"columns": [column | {"name": f"{k}".rjust(180, "x")} for k in range(10_000)]}
    sites = {"east": honest, "north": other, "west": honest}
    began = time.perf_counter()
    with pytest.raises(InputError, match="column 'column 0' is missing on north"):
        merge({name: Reported.of(each) for name, each in sites.items()}, TERMS)
    assert time.perf_counter() - began < 20.0  # 2 s on an idle core, minutes for all of them


def test_other_terms_are_refused_by_key() -> None:
    reports = reported(by_site(patients()), TERMS)
    with pytest.raises(InputError, match=r"data.positive is None on east, but 'yes' on the server"):
        merge(reports, Terms("ill", impute="mean", positive="yes"))


@pytest.mark.parametrize(("factor", "shift"), [(1 / 38.67, 0.0), (18.0, 0.0), (1.8, 1000.0)])
def test_other_units_are_pointed_out_with_the_numbers(factor: float, shift: float) -> None:
    frames = by_site(patients())
    assert merge(reported(frames, TERMS), TERMS).remarks == ()
    frames["north"] = frames["north"].assign(cholesterol=lambda f: f.cholesterol * factor + shift)
    (remark,) = merge(reported(frames, TERMS), TERMS).remarks
    mean = frames["north"].cholesterol.mean()
    assert remark.startswith(f"the mean of 'cholesterol' is {mean:.4g}")
    assert "on north" in remark


def test_identifiers_and_codes_of_numbers_are_pointed_out() -> None:
    frames = {name: frame.assign(patient_id=range(len(frame)), zip=7) for name, frame in by_site(patients()).items()}
    found = merge(reported(frames, TERMS), TERMS)
    assert "'patient_id' looks like an identifier: drop=['patient_id']" in found.remarks[0]
    assert "'zip' looks like a code" in found.remarks[0]
    plain = Terms("ill", impute="mean", drop=("patient_id",), categories=("zip",))
    assert merge(reported(frames, plain), plain).remarks == ()


def test_of_two_sites_one_is_pointed_out() -> None:
    frames = {name: frame for name, frame in by_site(patients()).items() if name != "west"}
    frames["north"] = frames["north"].assign(age=lambda f: f.age * 12)
    assert len(merge(reported(frames, TERMS), TERMS).remarks) == 1


def test_a_report_holds_no_row_and_is_checked() -> None:
    frame = by_site(patients())["west"]
    told = SiteTable(frame, TERMS).report()
    assert {tuple(sorted(each)) for each in told["columns"]} == {
        ("kind", "mean", "n", "name", "rest", "root"),
        ("kind", "levels", "name"),
    }
    assert all(len(each["mean"]) == 1 for each in told["columns"] if "mean" in each)
    for wrong in (
        {},
        told | {"rows": -1},
        told | {"columns": []},
        told | {"columns": [told["columns"][0] | {"mean": [float("nan")]}]},
        told | {"columns": [told["columns"][0], told["columns"][0]]},
        told | {"columns": [{"name": "x" * 300, "kind": "number"}]},
    ):
        with pytest.raises(ValueError, match=r"."):
            Reported.of(wrong)


def test_numbers_to_predict_do_not_leave_as_classes() -> None:
    told = SiteTable(by_site(patients())["west"], Terms("age", impute="mean")).report()
    assert told["labels"]["classes"] is None


def test_a_site_answers_for_its_own_columns_only(tmp_path: Path) -> None:
    """A server that was taken over cannot make a feature of a column that [data] drops."""
    frame = by_site(patients())["west"]
    shown = SiteTable(frame, TERMS)
    hidden = SiteTable(frame, Terms("ill", impute="mean", drop=("age",)))
    preparation = merge({"west": Reported.of(shown.report())}, TERMS).preparation
    with pytest.raises(InputError, match="other columns than those of this site"):
        hidden.features(preparation)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("", "data.target is missing"),
        ('target = "ill"\ntargett = 1', "there is no key data.targett"),
        ('target = "ill"\nimpute = "median"', "only sums leave a site"),
        ('target = "ill"\ntest = 2.0', "between 0 and 1"),
        ('target = "ill"\nproblem = "lasso"', "lasso"),
    ],
)
def test_bad_settings_are_one_sentence(tmp_path: Path, data: str, words: str) -> None:
    project = project_of(tmp_path, {"east": by_site(patients())["east"]}, data)
    with pytest.raises(InputError, match=words):
        project.config()


def lying(tell: Any, verb: str, told: Any) -> Any:
    """North changes what it tells in answer to one question."""

    def forge(user: int, reply: Any) -> list[Any]:
        packet = packets.from_records(reply.content)
        if user == SITES.index("north") and packet.header["verb"] == verb:
            tell(packet.header["facts"], told)
            reply.content = packets.to_records(packet)
        return [reply]

    return forge


@pytest.mark.parametrize(
    ("data", "verb", "tell", "told", "words"),
    [
        ('impute = "mean"', "schema", lambda f, x: f.update(rows=x), 10**6, "rows is 1e[+]06 on node north"),
        ('impute = "mean"', "schema", lambda f, x: f["columns"][0].update(n=[x]), 1e18, "node north reports.*count"),
        ('impute = "mean"', "schema", lambda f, x: f["columns"][0].update(rest=[x]), 1e12, "node north reports.*mean"),
        ('impute = "mean"', "schema", lambda f, x: f["columns"][0].update(mean=[x]), 1e9, "'age' is 1e[+]09 on node n"),
        ('impute = "mean"', "schema", lambda f, x: f["columns"][-1]["levels"].update(a=x), 10**6, "node north reports"),
        ('impute = "mean"', "schema", lambda f, x: f["columns"][-1]["levels"].update(a=x), 0, "node north reports"),
        ('class_weight = "balanced"', "schema", lambda f, x: f["labels"].update(counts=[x, 1]), 10**6, "north reports"),
        ('impute = "mean"', "moments", lambda f, x: f["n"].__setitem__(0, x), 0.0, "node north reports means"),
        ('impute = "mean"', "moments", lambda f, x: f["root"].__setitem__(0, x), 1e9, "'age' is .* on node north"),
        ('impute = "mean"\ntest = 0.2', "prepare", lambda f, x: f.update(held_out=x), 10**400, "node north did not"),
        (
            'impute = "mean"\ntest = 0.2',
            "prepare",
            lambda f, x: f.update(held_out=x),
            10**6,
            "held-out rows is 1e[+]06",
        ),
        ('impute = "mean"', "prepare", lambda f, x: f.update(predictor=x), {}, "node north did not take"),
    ],
)
def test_a_site_s_claims_of_its_table_must_be_in_proportion(
    tmp_path: Path, data: str, verb: str, tell: Any, told: Any, words: str
) -> None:
    """Else it would decide alone how all sites' rows are scaled, filled, weighed or judged."""
    frames = by_site(patients() if "impute" in data else patients().dropna())
    project = project_of(tmp_path, frames, f'target = "ill"\n{data}')
    honest = grid_of(project, tmp_path / "memory")
    with pytest.raises(InputError, match=words):
        server_app.conduct(
            FakeGrid(honest.nodes, forge=lying(tell, verb, told), keys=honest.keys), project, project.runs
        )


def test_a_site_counts_no_values_of_numbers(tmp_path: Path) -> None:
    """A server that was taken over would learn a histogram of whole numbers, by making categories of them."""
    site = SiteTable(by_site(patients().dropna())["west"], TERMS)
    told = merge({"west": Reported.of(site.report())}, TERMS).preparation
    ages = [replace(c, levels=tuple(map(str, range(121)))) if c.name == "age" else c for c in told.columns]
    with pytest.raises(InputError, match="counts every value"):
        site.moments(replace(told, columns=tuple(ages)))
