"""`python -m resolvent`: the command line."""

from resolvent.cli import main

main()
