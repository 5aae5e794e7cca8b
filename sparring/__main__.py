"""`python -m sparring` is the command `sparring`."""

from sparring.cli import main

main()
