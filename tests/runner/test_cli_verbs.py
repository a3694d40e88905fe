"""The command line finds every verb, and imports no more than the one that is asked for."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from runner.cli.app import _MODULES, app


@pytest.mark.parametrize("verb", sorted(_MODULES))
def test_every_verb_is_where_the_table_says(verb: str) -> None:
    done = CliRunner().invoke(app, [verb, "--help"])
    assert done.exit_code == 0, done.output
    assert f"tokenmill {verb}" in done.output


def test_the_help_tells_of_all_of_them_in_order() -> None:
    lines = CliRunner().invoke(app, ["--help"]).output.splitlines()
    first_words = [line.strip("│| ").partition(" ")[0] for line in lines if line[2:3] != " "]
    assert [word for word in first_words if word in _MODULES] == list(_MODULES)


def test_the_verbs_of_several_files_are_one_group() -> None:
    told = CliRunner().invoke(app, ["jobs", "--help"]).output.split()
    assert {"ls", "cancel", "results", "edit", "retry", "merged"} <= set(told)


def test_a_word_that_is_no_verb_is_told_what_it_may_have_meant() -> None:
    done = CliRunner().invoke(app, ["job"])
    assert done.exit_code == 2
    assert "Did you mean 'jobs'?" in done.output


def test_a_verb_imports_itself_alone() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from runner.cli.app import app\n"
        "assert CliRunner().invoke(app, ['down', '--help']).exit_code == 0\n"
        "print(*sorted(m for m in sys.modules if m.startswith('runner.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "runner.cli.app",
        "runner.cli.console",
        "runner.cli.exit_codes",
        "runner.cli.lifecycle",
    ]
