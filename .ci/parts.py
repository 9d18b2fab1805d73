"""A hook of mkdocs: tables of all parts, from the registry, where docs/cli.md says `<!-- parts -->`."""

from __future__ import annotations

from typing import Any

import resolvent.cli.running  # noqa: F401 (with all parts that the command line can name)
from resolvent.iteration import registry

HEADER = "| name | keys | what it is |\n|---|---|---|"
PLACES = {"penalty": "`problem.penalty`", "schedule": "`scheme.schedule`"}
OPTIONS = {"local": "local-operator"}


def tables() -> str:
    """One table per kind of part."""
    return "\n\n".join(
        f"{PLACES.get(kind, f'`[{kind}]`')}, `--{OPTIONS.get(kind, kind)}`: {what.about}\n\n"
        + "\n".join([HEADER, *registry.table(kind)])
        for kind, what in registry.KINDS.items()
    )


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace("<!-- parts -->", tables())
