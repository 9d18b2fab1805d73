"""Commands of a real federation: a project, its keys, its processes and its runs."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from resolvent import config as configs
from resolvent.cli import output
from resolvent.cli.arguments import RUNS, Form, Out, Quiet
from resolvent.cli.background import alone, detached
from resolvent.cli.output import Format, say
from resolvent.cli.running import show_coefficients
from resolvent.engines.flower.grid import needed
from resolvent.errors import InputError, refuse, whole
from resolvent.experiment import opening
from resolvent.federation import (
    control,
    demo,
    doctor,
    export,
    keys,
    processes,
    running,
    settings,
    template,
    up,
)
from resolvent.federation.nodes import NodeProcesses
from resolvent.federation.project import Project, opened
from resolvent.runs import Folder, metrics

app = typer.Typer(
    help="Real federations over Flower: users on machines of their own, with TLS and keys.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
Where = Annotated[Path, typer.Option("--project", metavar="DIR", help="The project's folder.")]
HERE = Path(".")
Detach = Annotated[bool, typer.Option("--detach", help="Go on in the background; `federate stop` ends it.")]
Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reaches user.py in node_config; repeatable.")
]
DataFile = Annotated[
    Path | None, typer.Option("--data", metavar="FILE", help="The node's table; node_config['data'] of user.py.")
]
KILLED = 4


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or one without a federation.toml.")],
    host: Annotated[
        str, typer.Option("--host", help="A name or address at which nodes reach the server.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The server's port.")] = 9443,
    users: Annotated[int, typer.Option("--users", help="How many nodes a run waits for.")] = 3,
    table: Annotated[bool, typer.Option("--table", help="Every node has a table: no user.py is needed.")] = False,
    target: Annotated[str, typer.Option("--target", metavar="COLUMN", help="With --table: what to predict.")] = "y",
    no_keys: Annotated[bool, typer.Option("--no-keys", help="No certificates: on a node's machine.")] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Secure sums: the server learns sums of answers and nothing else.")
    ] = False,
) -> None:
    """Make a project: federation.toml, user.py (or tables), certificates, and a README with the commands."""
    whole(users, "--users")
    project = template.write(folder, host, port, users, target if table else None, secure)
    if not no_keys:
        keys.make_server(project, [host])
    next_ = "look at [data] in federation.toml" if table else "put your data into user.py"
    say(f"{folder}: a federation; read README.md there, and {next_}")


@app.command(name="keys")
def make_keys(
    server: Annotated[bool, typer.Option("--server", help="The server's certificate, anew.")] = False,
    node: Annotated[list[str] | None, typer.Option("--node", metavar="NAME", help="A node's keys; repeatable.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Replace the keys of --node; restart it then.")] = False,
    where: Where = HERE,
) -> None:
    """Make certificates and keys."""
    project = opened(where)
    if not server and not node:
        raise InputError("nothing was asked for; give --server, or --node NAME")
    if renew and not node:
        raise InputError("--renew replaces a node's keys; give --node NAME as well")
    if server:
        keys.make_server(project, [project.server().host])
        say(f"{project.keys / keys.CA}: nodes need a copy of this file, and of no other")
    for name in node or ():
        say(f"{keys.make_node(project, name, renew)}.pub: the server needs a copy; the key itself stays here")


@app.command(name="up")
def bring_up(
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes.")] = 3,
    tables: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="FILE", help="A node's table, after which it is named; one for each node."),
    ] = None,
    setting: Setting = None,
    detach: Detach = False,
    where: Where = HERE,
) -> None:
    """Run the whole federation on this machine, with TLS and keys, for trying out; Ctrl-C ends it."""
    needed()
    whole(nodes, "--nodes")
    project, given = opened(where), _given(setting)
    alone(project, up.ROLE)
    each = up.nodes_of(tables, given) if tables else {f"site-{k}": given for k in range(nodes)}
    _needs_table(project, all("data" in own for own in each.values()))
    if detach:
        files = [part for path in tables or () for part in ("--data", str(path.resolve()))]
        detached(project, "up", "up", "--nodes", str(nodes), *files, *_passed_on(setting))
        return
    with up.Federation(project, each, each) as federation:
        note = processes.note(project.state, "up")
        there = f"{len(each)} nodes are up ({', '.join(each)})"
        say(f"the server listens at 127.0.0.1:{federation.server.port}; {there}; Ctrl-C ends all of it")
        try:
            up.watch(federation.check)
        finally:
            note.unlink(missing_ok=True)


@app.command()
def server(detach: Detach = False, where: Where = HERE) -> None:
    """Run the server of the federation, on the server's machine; Ctrl-C ends it."""
    needed()
    project = opened(where)
    alone(project, up.ROLE)
    if detach:
        detached(project, up.ROLE, "server")
        return
    with closing(up.ServerProcesses(project, project.server()).open()) as serving:
        say(f"the server listens at {serving.server.listen}, port {serving.server.port}; Ctrl-C ends it")
        up.watch(serving.check)


@app.command()
def node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node's name, that of its key.")],
    table: DataFile = None,
    setting: Setting = None,
    detach: Detach = False,
    where: Where = HERE,
) -> None:
    """Run a node, on the machine that has the data; Ctrl-C ends it."""
    needed()
    project, role, given = opened(where), f"node-{name}", _with_table(table, setting)
    keys.check_name(name)
    alone(project, role)
    _needs_table(project, "data" in given)
    if detach:
        files = [] if table is None else ["--data", str(table.resolve())]
        detached(project, role, "node", name, *files, *_passed_on(setting))
        return
    with closing(NodeProcesses(project, name, project.server(), given, say).open()) as running_node:
        running_node.await_problem()
        note = processes.note(project.state, role)
        try:
            say(f"node {name} is up; its logs are in {running_node.state}; Ctrl-C ends it")
            up.watch(running_node.check)
        finally:
            note.unlink(missing_ok=True)


@app.command()
def run(
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run: the latest, or the one named.")] = False,
    name: Annotated[str, typer.Argument(metavar="[RUN]", help="With --resume: which run.")] = "latest",
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder of runs.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end of the run.")] = False,
    form: Form = Format.table,
    quiet: Quiet = False,
    where: Where = HERE,
) -> int:
    """Begin a run of the federation, or go on with one, on the server's machine."""
    needed()
    project = opened(where)
    to = project.runs if out is None else out
    following = running.begin(project, to, name if resume else "")
    if detach:
        say("the run was begun; `resolvent federate status` shows how it stands")
        return 0
    try:
        return _tell(following.wait(None if quiet else demo.Progress(say), waiting=None if quiet else say), form)
    except KeyboardInterrupt:
        following.stop()
        say(f"the run was stopped; {following.next_command()}{'' if out is None else f' --out {out}'}")
        raise
    except running.Killed as error:
        say(str(error))
        return KILLED


@app.command()
def status(form: Form = Format.table, where: Where = HERE) -> None:
    """Show what runs on this machine, which nodes are online, and how the latest run stands."""
    project = opened(where)
    rows = [
        {
            "what": role,
            "stands": "running" if process["running"] else "ended without a word",
            "about": f"pid {process['pid']}",
        }
        for role, process in processes.noted(project.state).items()
    ]
    try:
        here = running.server_here(project)
        names = keys.public_keys(project)
        standing = {names[key]: stands for key, stands in control.nodes(project, here).items() if key in names}
        under_way = control.run_under_way(project, here)
        rows += [_standing(name, stands, under_way) for name, stands in sorted(standing.items())]
    except InputError as error:
        rows.append({"what": "server", "stands": "none here", "about": str(error)})
    try:
        latest = running.latest(project.runs)
        row = latest.row()
        refused = sum(event["kind"] == "refused" for event in latest.events)
        about = f"round {int(row.get('round', 0))} of {latest.config['run']['rounds']}, {refused} answers refused"
        rows.append({"what": latest.id, "stands": latest.status, "about": about})
    except InputError:
        pass
    output.rows(rows, form)


@app.command()
def stop(where: Where = HERE) -> None:
    """Stop whatever of this federation runs on this machine. A run can be resumed."""
    project = opened(where)
    order = sorted(processes.noted(project.state), key=lambda role: role == up.ROLE)
    stopped = [role for role in order if processes.stop_noted(project.state, role)]
    say(f"stopped: {', '.join(stopped)}" if stopped else "nothing of this federation runs here")


@app.command(name="doctor")
def look(
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Build this node's problem, too.")] = None,
    table: DataFile = None,
    setting: Setting = None,
    form: Form = Format.table,
    where: Where = HERE,
) -> int:
    """Check ports, certificates, clocks, versions and keys, and say what is wrong."""
    given = _with_table(table, setting)
    if given and node is None:
        raise InputError("--set and --data are for a node's problem; give --node NAME as well")
    rows = doctor.examine(where, node, given)
    output.rows(rows, form)
    bad = [row for row in rows if not row["fine"]]
    say(*(f"{row['what']}: {row['found']}" for row in bad))
    return 1 if bad else 0


@app.command(name="demo")
def show(
    rounds: Annotated[int, typer.Option("--rounds", help="How many rounds.")] = 5,
    out: Out = RUNS,
    form: Form = Format.table,
) -> None:
    """A federation of three nodes on this machine, from keys to a model, in one command; nothing is left behind."""
    needed()
    whole(rounds, "--rounds")
    done, gap = demo.demo(rounds, out, say)
    output.pairs({"run": done.id, "status": done.status, "gap": gap, "folder": str(done.path)}, form)


@app.command(name="export")
def export_(
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Which node of this machine.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help=".safetensors or .npz.")] = Path("model.safetensors"),
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Of which run; the latest.")] = None,
    where: Where = HERE,
) -> None:
    """Write a node's personal model into a file, on the node's machine: it is nowhere else."""
    of_run, number = export.personal(opened(where), node, to, run)
    say(f"{to}: the personal model of {node} after round {number} of {of_run}")


# --- what they are made of -------------------------------------------------------------------------------------------


def _given(settings: list[str] | None) -> dict[str, Any]:
    """What --set says, for node_config."""
    given = dict(configs.parse(one) for one in settings or ())
    for key in given:
        if re.split(r"[^a-z]", key.lower())[-1] in ("password", "passphrase", "secret", "token"):
            refuse(
                f"--set {key}",
                "on a command line",
                f"others can read that: let user.py read {key} from a file or os.environ",
            )
    return given


def _with_table(table: Path | None, settings: list[str] | None) -> dict[str, Any]:
    """What a node is given: --set, and the table of --data, found from any folder."""
    given = _given(settings)
    if table is None:
        return given
    if not table.is_file():
        raise InputError(f"--data is {table}, but no such file is there; name this node's table")
    return given | {"data": str(table.resolve())}


def _needs_table(project: Project, given: bool) -> None:
    """Refuse a node that would have no data, before any process is started."""
    if settings.terms_of(project.config()) is not None and not given:
        raise InputError("federation.toml has a section [data], so every node needs a table; give --data FILE")


def _standing(name: str, stands: str, under_way: bool) -> dict[str, str]:
    """A node's line. To take a key away shuts its node out, so that nobody is told to during a run."""
    about = ""
    if stands == control.NEVER_CAME:
        about = "not started yet, or with another key than this?"
        about += "" if under_way else f" no longer used? then take keys/nodes/{name}.pub away"
    return {"what": f"node {name}", "stands": stands, "about": about}


def _passed_on(settings: list[str] | None) -> list[str]:
    return [part for one in settings or () for part in ("--set", one)]


def _tell(done: Folder, form: Format) -> int:
    row = {name: value for name, value in done.row().items() if value == value}
    about: dict[str, Any] = {"run": done.id, "status": done.status, "reason": (done.end or {}).get("reason")}
    about |= row | {"folder": str(done.path)}
    model, described = done.model(), opening.description(done)
    preparation = described.preparation
    coefficients = {} if model is None or preparation is None else preparation.unscale(model)
    sites = metrics.read_users(done.path)
    lines = [] if sites is None else [{"site": name} | dict(own) for name, own in sites.iterrows()]
    if form is not Format.table:
        named = {"coefficients": {str(name): value for name, value in coefficients.items()}} if coefficients else {}
        output.pairs(about | named | ({"sites": lines} if lines else {}), form)
    else:
        mean = {"test_auc": "test auc, sites' mean"}  # scores do not leave a site
        output.pairs({mean.get(name, name): value for name, value in about.items()}, form)
        say(*(f"{event['kind']}: {event['reason']}" for event in done.events if event["kind"] in ("time", "unsolved")))
        output.rows(lines, form, "Held-out rows, by site")
        if coefficients:
            show_coefficients(coefficients, described.adds_to)
    return {"diverged": 3}.get(done.status, 0)
