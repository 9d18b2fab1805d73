"""The page's API: thin functions over the store, the jobs, the explorer and the paper's panels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from fastapi.params import Query
from fastapi.responses import JSONResponse, StreamingResponse

import resolvent
from resolvent import report
from resolvent.errors import DamagedRun
from resolvent.iteration import registry
from resolvent.iteration.table import TABLE
from resolvent.report.page import DASHES
from resolvent.report.tables import strict
from resolvent.runs import Folder, damaged
from resolvent.runs.folder import reading, together
from resolvent.ui import examples, explorer, models, recipes
from resolvent.ui.curves import Curves
from resolvent.ui.downloads import KINDS, download
from resolvent.ui.form import form
from resolvent.ui.jobs import Jobs
from resolvent.ui.panels import Panels
from resolvent.ui.store import Store, settings_of
from resolvent.ui.stream import Stream
from resolvent.ui.users import losses, presence

RunId = Annotated[str, InPath(min_length=1, max_length=200)]
Name = Annotated[str, InPath(min_length=1, max_length=80)]
QUIET = {("run", "threads"), ("problem", "sha256")}
"""Settings whose differences say nothing."""
REFUSED: dict[int | str, dict[str, Any]] = {code: {"description": reason} for code, reason in {
    400: "The request cannot be used; `detail` says why.", 401: "The token is missing or wrong.",
    403: "The request came from another web page.", 404: "There is no such run or panel.",
    409: "The run is in another state.", 413: "The body is too long.", 421: "The Host is not this server.",
    422: "A value is out of its bounds.", 429: "Too much is running already."}.items()}  # fmt: skip


class Json(JSONResponse):
    """JSON in ASCII, so that whatever text a request carried can be told back; NaN and infinity become null."""

    def render(self, content: Any) -> bytes:
        try:
            return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
        except ValueError:  # rare enough that looking for them each time would be a waste
            return json.dumps(strict(content), separators=(",", ":"), allow_nan=False).encode()


def router(out: Path, ending: Callable[[], bool]) -> APIRouter:
    """The API over a folder of runs; `ending` says whether the server is about to end."""
    store, curves = Store(out), Curves()
    store.refresh()
    jobs, panels = Jobs(store), Panels(out)
    stream = Stream(store, jobs, ending)
    api = APIRouter(prefix="/api", responses=REFUSED, default_response_class=Json)
    _runs(api, store, curves)
    _jobs(api, store, jobs)
    _explorer(api)
    _paper(api, panels)

    @api.get("/stream", summary="Server-sent events: runs and jobs that have changed", include_in_schema=False)
    async def events(request: Request) -> StreamingResponse:
        news = stream.listen(request.is_disconnected)
        return StreamingResponse(news, media_type="text/event-stream", headers={"cache-control": "no-store"})

    return api


def _runs(api: APIRouter, store: Store, curves: Curves) -> None:
    @api.get("/runs", response_model=models.RunList, summary="Every run, newest first")
    def listed() -> Response:
        store.refresh()
        return Json({"folder": store.out.name, "runs": store.rows()})

    @api.get("/runs/{run}", response_model=models.RunDetail, summary="One run")
    def one(run: RunId) -> Response:
        folder, row = store.folder(run), store.row(run)
        try:
            with reading(folder):
                return Json(_detail(folder, row))
        except DamagedRun as error:
            return Json(_damaged(row, [error.words]))

    @api.get("/runs/{run}/metrics", response_model=models.Metrics, summary="The rows of a run from a number on")
    def metrics(
        run: RunId,
        after: Annotated[int, Query(ge=0, le=2**31)] = 0,
        edition: Annotated[str | None, Query(max_length=100)] = None,
    ) -> Response:
        folder = store.own(run)
        with reading(folder):
            return Json(curves.since(folder.metrics, after, edition))

    @api.get("/runs/{run}/participation", response_model=models.Presence, summary="Who took part in the last rounds")
    def participation(run: RunId) -> Response:
        folder = store.own(run)
        with reading(folder):
            return Json(presence(folder, store.row(run)["round"]))

    @api.get("/runs/{run}/losses", response_model=models.Losses, summary="Each user's loss at the model")
    def losses_(run: RunId) -> Response:
        folder = store.own(run)
        with reading(folder):
            return Json(losses(folder))

    @api.post("/compare", response_model=models.Comparison, summary="Curves, and the settings that differ")
    def compare(chosen: models.Chosen) -> Response:
        return Json(_compared([store.folder(name) for name in dict.fromkeys(chosen.runs)]))

    @api.get("/download/{kind}", summary="Rows, a picture or a report of some runs", response_class=Response)
    def downloaded(
        kind: Literal["csv", "parquet", "png", "svg", "html"],
        run: Annotated[list[str], Query(min_length=1, max_length=200)],
        x: Literal["round", "seconds", "bytes"] = "round",
        y: Annotated[str | None, Query(max_length=60)] = None,
    ) -> Response:
        chosen = [store.folder(name) for name in dict.fromkeys(run)]
        content = together(chosen, lambda these: download(kind, these, x, y))
        name = {"content-disposition": f'attachment; filename="resolvent-runs.{kind}"'}
        return Response(content, media_type=KINDS[kind], headers=name)


def _jobs(api: APIRouter, store: Store, jobs: Jobs) -> None:
    @api.get("/form", summary="The typed configuration as a form")
    def asked() -> dict[str, Any]:
        return form()

    @api.get("/jobs", response_model=list[models.JobRow], summary="What was started from the page")
    def listed() -> Response:
        return Json(jobs.rows())

    @api.post("/runs", response_model=models.JobRow, status_code=202, summary="Start a run")
    def begin(start: models.Start) -> Response:
        return Json(jobs.begin(start.config), status_code=202)

    @api.post("/runs/{run}/stop", status_code=202, summary="Interrupt a run")
    def stop(run: RunId) -> Response:
        jobs.stop(store.folder(run))
        return Json({"run": run}, status_code=202)

    @api.post("/runs/{run}/resume", response_model=models.JobRow, status_code=202, summary="Resume a run")
    def resume(run: RunId) -> Response:
        return Json(jobs.resume(store.folder(run)), status_code=202)


def _explorer(api: APIRouter) -> None:
    @api.get("/explorer", summary="What the explorer offers: problems, algorithms, bounds")
    def offered() -> dict[str, Any]:
        return {
            "problems": [_offered(name, example) for name, example in examples.EXAMPLES.items()],
            "algorithms": [{"name": name, **row._asdict()} for name, row in TABLE.items()],
            "schedules": list(registry.parts("schedule")),
            "version": resolvent.__version__,
        }

    @api.post("/explore", summary="Run what the sliders say")
    def explore(asked: models.Explore) -> Response:
        setup = asked.setup()
        example = examples.EXAMPLES[setup.problem]
        line, note = recipes.command(setup)
        users = [] if example.picture is None else example.picture(setup.sizes)
        more = {"python": recipes.python(setup), "command": line, "note": note, "users": users}
        return Json(explorer.explore(setup) | more)


def _paper(api: APIRouter, panels: Panels) -> None:
    @api.get("/paper", summary="The paper's figures, and how many of their runs are there")
    def contents() -> Response:
        return Json({"folder": panels.out.name, "figures": panels.contents()})

    @api.get("/paper/{figure}/{panel}", summary="A panel's verdicts")
    def panel_(figure: Name, panel: Name) -> Response:
        return Json(panels.panel(figure, panel))

    @api.get("/paper/{figure}/{panel}/picture", summary="A panel's picture", response_class=Response)
    def picture(figure: Name, panel: Name) -> Response:
        return Response(panels.picture(figure, panel), media_type="image/png")


def _offered(name: str, example: examples.Example) -> dict[str, Any]:
    low, usual, high = example.eta
    return {"name": name, "title": example.title, "about": example.about, "eta": [low, usual, high], "y": example.y,
            "rounds": example.rounds, "heterogeneity": list(example.heterogeneity), "sized": example.sized,
            "penalised": example.penalised, "drawn": example.picture is not None}  # fmt: skip


def _detail(run: Folder, row: dict[str, Any]) -> dict[str, Any]:
    damage = [row["reason"]] if row["status"] == "damaged" else run.damage()
    if damage:
        return _damaged(row, damage)
    about = run.about
    return {
        "row": row,
        "damage": [],
        "explanation": about["explanation"]["words"],
        "findings": about["explanation"].get("findings", []),
        "config": settings_of(run),
        "toml": run.toml,
        "environment": about["environment"],
        "problem": about["problem"],
        "forked": about.get("forked"),
        "events": [_event(event) for event in run.events[-500:]],
    }


def _damaged(row: dict[str, Any], damage: list[str]) -> dict[str, Any]:
    """Of a damaged run nothing else is shown."""
    return {"row": row | {"status": "damaged", "reason": damage[0]}, "damage": damage, "explanation": "",
            "findings": [], "config": {}, "toml": "", "environment": {}, "problem": {}, "forked": None,
            "events": []}  # fmt: skip


def _event(event: dict[str, Any]) -> dict[str, str]:
    shown_elsewhere = ("time", "kind", "sum", "reason", "words", "metrics", "checkpoint", "users")
    more = ", ".join(f"{key} {value}" for key, value in event.items() if key not in shown_elsewhere)
    words = [str(event[key]) for key in ("reason", "words") if event.get(key)]
    return {"time": event["time"], "kind": event["kind"], "words": "; ".join([*words, *([more] if more else [])])}


def _compared(named: list[Folder]) -> dict[str, Any]:
    """The curves and settings of the runs that can be read, and a sentence on each of the others."""
    chosen, damage = [], []
    for run in named:
        try:
            with reading(run):
                if wrong := run.damage():
                    raise damaged(run, wrong)
                _ = report.curves([run])
            chosen.append(run)
        except DamagedRun as error:
            damage.append(str(error))
    configs = [settings_of(run) for run in chosen]
    curves = report.curves(chosen) if chosen else []
    lines = [{"label": curve.label, "colour": curve.colour, "dash": DASHES[curve.dash % len(DASHES)],
              "runs": [run.id for run in curve.runs]} for curve in curves]  # fmt: skip
    keys = {(section, key): None for tree in configs for section, values in tree.items() for key in values}
    different = []
    for section, key in keys:
        values = [tree.get(section, {}).get(key) for tree in configs]
        if section != "store" and (section, key) not in QUIET and any(value != values[0] for value in values):
            different.append({"key": f"{section}.{key}", "values": values})
    return {"runs": [run.id for run in chosen], "curves": lines, "different": different, "damage": damage}
