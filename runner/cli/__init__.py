"""The command line: ``tokenmill VERB``."""

from runner.cli.app import main

__all__ = ["main"]
