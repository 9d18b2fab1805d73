"""Real federations over Flower: a project's folder, its keys, its processes, and the server's side of a run.

A project:

    federation.toml   the algorithm, when rounds close, where the server is
    user.py           problem(node_config): one user's data and model, on the node's own disk
    keys/             certificates, and the keys of nodes
    runs/             the run store, on the server's machine
    .federation/      what processes leave here: logs, Flower's database, what nodes remember
"""
