"""The commands by name: each is imported when it is called; `--help` reads their first sentences from the source."""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    import click

MODULES = ("running", "many", "looking", "predicting", "getting", "reproducing", "ui")
"""Each has a dict COMMANDS, from functions to their examples."""
GROUP = "federate"
"""A module whose `app` has commands of its own."""


@cache
def sentences() -> dict[str, tuple[str, str]]:
    """By the name of each command its module and the first paragraph of its docstring. Nothing is imported."""
    listed: dict[str, tuple[str, str]] = {}
    for module in MODULES:
        tree = ast.parse(resources.files(__package__).joinpath(f"{module}.py").read_text(encoding="utf-8"))
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "COMMANDS":
                names = [ast.unparse(key) for key in getattr(node.value, "keys", ())]
                listed |= {
                    name: (module, (ast.get_docstring(functions[name]) or "").split("\n\n")[0]) for name in names
                }
    return listed | {GROUP: (GROUP, "Real federations over Flower: users on machines of their own, with TLS and keys.")}


class Commands(TyperGroup):
    """A group whose commands are imported when they are called: most need torch, whose import takes a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(sentences())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.commands and name in (known := sentences()):
            self.commands[name] = _made(name, import_module(f"{__package__}.{known[name][0]}"))
        return self.commands.get(name)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._list()
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in sentences():  # Typer suggests one of those that are listed
            self._list()
        return super().resolve_command(ctx, args)

    def _list(self) -> None:
        """Let every command be known by its name and first sentence, before its module is imported."""
        for name, (_, sentence) in sentences().items():
            self.commands.setdefault(name, TyperCommand(name, help=sentence))


def _made(name: str, module: Any) -> click.Command:
    """A command of a module, or the group."""
    if name == GROUP:
        return typer.main.get_command(module.app)
    function, examples = next(item for item in module.COMMANDS.items() if item[0].__name__ == name)
    one = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    one.command(epilog="\n\n        ".join(["Examples:", *examples]))(function)
    return typer.main.get_command(one)
