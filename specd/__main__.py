"""`python -m specd`."""

from specd.cli.app import main

main()
