"""The command line, thin over the library."""

from resolvent.cli.main import app, main

__all__ = ["app", "main"]
