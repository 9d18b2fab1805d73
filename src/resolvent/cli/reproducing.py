"""The command that reproduces the paper."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from resolvent import report
from resolvent.cli import output
from resolvent.cli.arguments import CODES, Form, Quiet
from resolvent.cli.output import Format, say
from resolvent.errors import quoted, refuse
from resolvent.paper import archive as archives
from resolvent.paper import conduct, judging
from resolvent.paper.conduct import RunIndex
from resolvent.paper.figure import Figure, Panel
from resolvent.paper.figures.contents import BESIDE, FIGURES
from resolvent.paper.judging import Judged, JudgedPanel
from resolvent.solving import progress

OUT = Path("runs/paper")
KINDS = {"all": (True, False), "convex": (False,), "networks": (True,)}
ALL = "all"


def _labels(incomplete: str) -> list[str]:
    return [name for name in (ALL, *(figure.name for figure in (*FIGURES, *BESIDE))) if name.startswith(incomplete)]


def reproduce(
    what: Annotated[str | None, typer.Argument(metavar="[FIGURE|all]", help="Without it: a list of all figures.",
                                               autocompletion=_labels)] = None,
    panel: Annotated[str | None, typer.Option("--panel", metavar="KEY", help="One panel of the figure.")] = None,
    scale: Annotated[str, typer.Option(metavar="quick|paper", help="How large networks' panels are.")] = judging.QUICK,
    only: Annotated[str, typer.Option(metavar="convex|networks", help="Leave the other panels out.")] = ALL,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where networks are trained.")] = "cpu",
    seeds: Annotated[int | None, typer.Option(min=1, help="Run at most this many seeds.")] = None,
    together: Annotated[bool, typer.Option("--together", help="Run the seeds of a network as one batch.")] = False,
    stored_only: Annotated[bool, typer.Option("--kept", help="Run nothing: draw and judge the stored runs.")] = False,
    verdicts: Annotated[Path | None, typer.Option("--verdicts", metavar="FILE.md",
                                                  help="Write the verdicts, with pictures beside them, too.")] = None,
    archive: Annotated[Path | None, typer.Option("--archive", metavar="DIR",
                                                 help="Store curves of networks at --scale paper there, as small "
                                                 "files.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of runs, pictures and the page.")] = OUT,
    form: Form = Format.table,
    quiet: Quiet = False,
) -> int:  # fmt: skip
    """Reproduce the paper: run what a figure needs, draw it, and judge what the text claims of it."""
    if what is None:
        output.rows(_listed(RunIndex(out, scale)), form, "resolvent reproduce FIGURE [--panel KEY], or all")
        return 0
    if scale not in (judging.QUICK, judging.PAPER):
        refuse("--scale", quoted(scale), "quick or paper is needed")
    if only not in KINDS:
        refuse("--only", quoted(only), "convex or networks is needed")
    if archive is not None and scale != judging.PAPER:
        refuse("--archive", archive, "it is for --scale paper: quick runs are made again soon enough")
    report.needed("matplotlib")
    figures = FIGURES if what == ALL else (*FIGURES, *BESIDE)
    chosen = [pair for pair in conduct.choose(figures, what, panel) if pair[1].networks in KINDS[only]]
    if not chosen:
        refuse("--only", quoted(only), f"{what} has no such panel")
    index = RunIndex(out, scale, device, seeds, together)
    say(*(f"left out: {words}" for words in index.complaints))
    code = _make(chosen, index, stored_only, verdicts, form, quiet)
    if archive is not None and code == 0:
        say(f"{archives.add(chosen, index, archive)}: the curves")
    return code


def _make(
    chosen: Sequence[tuple[Figure, Panel]],
    index: RunIndex,
    stored_only: bool,
    verdicts: Path | None,
    form: Format,
    quiet: bool,
) -> int:
    from resolvent.paper import document, page

    try:
        with _bar(index.steps(chosen), quiet) as step:
            panels = [conduct.make(figure, panel, index, step, stored_only) for figure, panel in chosen]
    except KeyboardInterrupt:
        say("interrupted: the same command goes on where it was left")
        return CODES["interrupted"]
    rows = _verdict_rows(panels)
    if form is Format.table and len({one.figure.label for one in panels}) > 1:  # too much for a terminal
        rows = [{name: row[name] for name in ("panel", "claim", "verdict", "first choice")} for row in rows]
    if form is Format.table and not any(row["first choice"] for row in rows):
        rows = [{name: cell for name, cell in row.items() if name != "first choice"} for row in rows]
    output.rows(rows, form, "Verdicts")
    say(judging.count(panels, index.scale))
    say(f"{page.write(panels, index.out, index.scale)}: the page")
    if verdicts is not None:
        say(f"{document.write(panels, verdicts, index)}: the verdicts")
    return 0


def _listed(index: RunIndex) -> list[dict[str, Any]]:
    numbers = conduct.numbered(FIGURES)
    return [
        {
            "figure": figure.name,
            "number": numbers.get(figure.name),
            "panels": ", ".join(panel.key for panel in figure.panels),
            "runs": len(index.needed(figure.panels)),
            "what": figure.title,
        }
        for figure in (*FIGURES, *BESIDE)
    ]


def _verdict_rows(panels: Sequence[JudgedPanel]) -> list[dict[str, Any]]:
    rows = []
    for one in panels:
        where = f"{one.figure.name} {one.panel.key}"
        if one.results is None:
            absent = {"claim": "not run", "verdict": "", "first choice": "", "measured": f"{one.missing} runs missing"}
            rows.append({"panel": where} | absent)
        rows += [_row(where, judged) for judged in one.verdicts]
    for figure in judging.unique(one.figure for one in panels):
        several = judging.across(figure, panels)
        rows += [_row(f"{figure.name} ({len(judged.claim.panels)} panels)", judged) for judged in several]
    return rows


def _row(panel: str, one: Judged) -> dict[str, Any]:
    first = "" if one.first is None else one.first.said
    verdict = {"verdict": one.verdict.said, "first choice": first, "measured": one.verdict.numbers}
    return {"panel": panel, "claim": one.text} | verdict


@contextlib.contextmanager
def _bar(total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A progress bar over all runs on a terminal, else one line per panel."""
    if quiet or not progress.wanted(None):
        seen: set[str] = set()

        def line(words: str) -> None:
            panel = words.partition(":")[0]
            if panel not in seen and not quiet:
                say(panel)
            seen.add(panel)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=-1)
        yield lambda words: bar.update(task, advance=1, description=words)


COMMANDS: dict[Callable[..., Any], tuple[str, ...]] = {
    reproduce: (
        "resolvent reproduce",
        "resolvent reproduce fig-extrap --panel left",
        "resolvent reproduce all --scale quick",
        "resolvent reproduce all --only convex --verdicts docs/paper.md",
        "resolvent reproduce niid-bench --panel one-label",
    ),
}
