"""What `resolvent federate init` writes: a small project, to be read and changed."""

from __future__ import annotations

from pathlib import Path

from resolvent.errors import InputError, StorageError
from resolvent.federation.project import FILE, Project, private

FEDERATION = """\
# A federation: what is run, when rounds close, and where the server is. Nodes need {needed}.

[server]
host = "{host}"        # a name or address at which nodes reach the server; its certificate has it
port = {port}
# bind = "0.0.0.0"     # listen at every address of the server's machine, not at `host` alone

[federation]
users = {users}             # the run begins once so many nodes are there
weights = "rows"       # every row counts the same; or "users": every user does; or "site-0=1, site-1=2"
close = 1.0            # a round closes after this share of the answers,
timeout = 120.0        # or after so many seconds,
min_users = 1          # but not before so many users have answered
# max_norm = 1e6       # refuse answers that are longer
# max_move = 1e4       # withhold answers that lead so many times farther than the others'
# max_weight = 100.0   # refuse a node whose own numbers give it so many times the others' weight
# curvature = true     # let eta = "auto" ask for gradients and Hessians too
{secure}secure = true        # the server learns sums alone; on a node: answer nothing else
# penalty = "l1:0.1"   # minimise f + g: l1, l2, elastic-net, box, orthant, simplex, ball

{data}[scheme]
algorithm = "fedpi"    # fedavg, fedprox, fedsplit, fedpi, fedrp, reflect_gradient, reflect_prox
{scheme}"""

SCHEME = """\
# eta = 1.0            # found while it runs, where the problem is convex and the algorithm exact

[run]
rounds = 100           # at most

[anderson]             # fewer rounds; for networks take it out
memory = 5

[stop]
certificates = 1e-6    # before the last round, once these are as small
"""

SECURE_SCHEME = """\
eta = 1.0              # a number: with secure sums nobody's own answer is known to find it by

[run]
rounds = 100           # all of them: nobody knows certificates
"""

DATA = """\
[data]                 # each node's table, `federate node NAME --data FILE`; every site needs the same section
target = "{target}"        # the column to predict
# problem = "auto"     # logistic, softmax, least-squares, poisson, huber, squared-hinge, quantile
# user_column = "site" # a column that is no feature; as are those of
# drop = ["id"]
# categories = ["zip"] # numbers that are codes
# impute = "mean"      # fill missing numbers by the mean of all sites, text by the most frequent
test = 0.2             # the share of each site's rows that is held out
# positive = "yes"     # the class that is told from the others
# standardise = true
# intercept = true
# class_weight = "balanced" # rare classes count as much as others; or "yes=5"
# reg = 0.1            # the ridge; 1 / (sites * rows) unless given

"""

USER = '''\
"""One user of the federation: its data and its model. This file, and the data, stay on the node's machine."""

import numpy as np
import resolvent as rs


def problem(node_config):
    """The problem of this node alone. node_config has its `name`, and what was given with --set."""
    X, y = load(node_config)
    return rs.Logistic([X], [y], reg=0.1)


def load(node_config):
    """This node's own rows: features (rows, d), and labels +1 or -1. Read your own file here, for example

    table = np.loadtxt("/data/hospital.csv", delimiter=",", skiprows=1)
    return table[:, :-1], np.where(table[:, -1] > 0, 1.0, -1.0)
    """
    seed = sum(node_config["name"].encode())
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((80, 5)) + 0.3 * rng.standard_normal(5)
    y = np.where(X @ np.arange(1.0, 6.0) + rng.standard_normal(80) > 0, 1.0, -1.0)
    return X, y


# A network instead: every node makes the same module, with the same seed.
#
# def problem(node_config):
#     import torch
#
#     torch.manual_seed(0)
#     model = rs.models.mnist_cnn()
#     x, y = ...                                   # images (n, 1, 28, 28) in float32 and labels (n,) of this node
#     return rs.Neural(model, [(x[:800], y[:800])], test=[(x[800:], y[800:])])


# Figures from data that were held out, averaged over nodes by weight; only these numbers are sent.
#
# def metrics(model, node_config):
#     X, y = load_test(node_config)
#     return {"test_accuracy": float(((X @ model.numpy() > 0) == (y > 0)).mean())}
'''

README = """\
# A federation

`user.py` says what one user's problem is. It is read on the nodes, from their own disks, and is never sent.
`federation.toml` says what is run. `keys/` has certificates and keys: never copy a file whose name is not named here.

## Trying it out, on one machine

    resolvent federate up --nodes {users}          # in one terminal; Ctrl-C ends it
    resolvent federate run                   # in another
    resolvent ls; resolvent show RUN; resolvent report

## The server's machine

    resolvent federate keys --server         # a certificate authority and the server's certificate, once
    resolvent federate server                # until Ctrl-C
    resolvent federate run                   # in another terminal; --resume goes on after a crash

Nodes' public keys go into `keys/nodes/NAME.pub`, before `federate run`. Take one away, and that node is shut out.

## A node's machine

    pip install 'resolvent[flower]'
    resolvent federate init . --no-keys      # then put your data into user.py
    # copy from the server's machine: federation.toml and keys/ca.crt
    resolvent federate keys --node site-0    # makes keys/nodes/site-0, which stays here, and site-0.pub for the server
    resolvent federate doctor
    resolvent federate node site-0           # until Ctrl-C
    resolvent federate export --node site-0 --to mine.safetensors   # this node's personal model
"""

TABLE_README = """\
# A federation of tables

Every site has a table of its own, which never leaves it. `federation.toml` says what is run, and in [data] which column
is predicted.
`keys/` has certificates and keys: never copy a file whose name is not named here.

## Trying it out, on one machine

    resolvent federate up --data a.csv --data b.csv --data c.csv     # in one terminal; Ctrl-C ends it
    resolvent federate run                   # in another
    resolvent predict latest new.csv --out predictions.csv

## The server's machine

    resolvent federate server                # until Ctrl-C
    resolvent federate run                   # in another terminal; --resume goes on after a crash

Nodes' public keys go into `keys/nodes/NAME.pub`. Take one away, and that node is shut out.

## A site's machine

    pip install 'resolvent[flower]'
    # copy from the server's machine: federation.toml and keys/ca.crt, into a folder of the same form
    resolvent federate keys --node site-0    # makes keys/nodes/site-0, which stays here, and site-0.pub for the server
    resolvent federate doctor --node site-0 --data /srv/patients.csv
    resolvent federate node site-0 --data /srv/patients.csv          # until Ctrl-C
"""

IGNORED = """\
.federation/
runs/
keys/ca.key
keys/server.key
keys/superexec.secret
keys/nodes/*
!keys/nodes/*.pub
"""


def write(
    folder: Path,
    host: str = "127.0.0.1",
    port: int = 9443,
    users: int = 3,
    table: str | None = None,
    secure: bool = False,
) -> Project:
    """A new project; files that are there already are not touched.

    table: the column to predict, where every node has a table; else user.py makes the nodes' problems.
    secure: whether the server is to learn sums alone.
    """
    if (folder / FILE).exists():
        raise InputError(f"{folder} has a {FILE} already; name another folder, or change that one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            FILE: _settings(host, port, users, table, secure),
            "README.md": (README if table is None else TABLE_README).format(users=users),
            ".gitignore": IGNORED,
        }
        if table is None:
            files["user.py"] = USER
        for name, text in files.items():
            if not (folder / name).exists():
                (folder / name).write_text(text)
        Project(folder).nodes.mkdir(parents=True, exist_ok=True)  # where other machines' files are copied to
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error.strerror}); name another folder") from None
    return private(Project(folder.resolve()))


def _settings(host: str, port: int, users: int, table: str | None, secure: bool) -> str:
    data = "" if table is None else DATA.format(target=table.replace("\\", "\\\\").replace('"', '\\"'))
    needed = "the section [server] only" if table is None else "the sections [server] and [data]"
    needed += " and `secure` of [federation]" if secure else ""
    scheme, off = (SECURE_SCHEME, "") if secure else (SCHEME, "# ")
    return FEDERATION.format(host=host, port=port, users=users, data=data, needed=needed, secure=off, scheme=scheme)


def fix(project: Project, eta: float, rounds: int, more: str = "") -> None:
    """Let a new project run FedPi with this eta for so many rounds, and nothing beside; more: further sections."""
    path = project.path / FILE
    head = path.read_text().partition("[scheme]")[0]
    path.write_text(f'{head}[scheme]\nalgorithm = "fedpi"\neta = {eta}\n\n[run]\nrounds = {rounds}\n{more}')
