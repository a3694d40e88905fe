"""``python -m runner.cli``, the same as the ``tokenmill`` command."""

from runner.cli.app import main

main()
