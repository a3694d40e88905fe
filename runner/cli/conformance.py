"""``tokenmill conformance``: whether a server does what OpenAI's client and its users rely on."""

from typing import Annotated
from urllib.parse import urlsplit

import typer

from runner.cli.console import AsJson, print_json, print_table, progress_console
from runner.cli.exit_codes import ExitCode

_SMALL, _FULL = 20 * 1024**2, 200 * 1024**2  # bytes of the file that is streamed


def register(parent: typer.Typer) -> None:
    """Add ``conformance`` to the command line."""
    parent.command()(conformance)


def conformance(
    base_url: Annotated[str, typer.Option(help="Such as http://127.0.0.1:8080/v1.")],
    api_key: Annotated[str, typer.Option(help="A key to it. Its project gets some 270 batches.")],
    model: Annotated[str | None, typer.Option(help="Else the first one listed.")] = None,
    other_api_key: Annotated[
        str | None, typer.Option(help="A key of another project, who must see nothing.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Stream 200 MiB, not 20.")] = False,
    trap: Annotated[list[int] | None, typer.Option(min=1, max=17, help="Only this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Try the 17 traps of the batch contract on a live server, ours or any other."""
    # The client takes a second to import, which no other verb should wait for.
    from runner.conformance.suite import TRAPS, examine
    from runner.conformance.target import Target
    from runner.conformance.verdicts import Verdict

    target = Target(_with_v1(base_url), api_key, model, other_api_key, _FULL if full else _SMALL)
    numbers = frozenset(trap or ())
    findings = []
    for finding in examine(target, numbers):
        findings.append(finding)
        progress_console.print(
            f"{finding.number:>2} {finding.verdict}: {finding.what}", highlight=False
        )
    passed = sum(finding.verdict is Verdict.PASSED for finding in findings)
    score = f"{passed}/{len(numbers) or len(TRAPS)}"
    if as_json:
        print_json({"score": score, "findings": findings})
    else:
        rows = [(f.number, f.what, f.verdict, f"{f.seconds:.1f} s", f.said) for f in findings]
        print_table(("#", "trap", "verdict", "took", "seen"), rows)
        typer.echo(score)
    if passed != len(findings):
        raise typer.Exit(ExitCode.FAILURES)


def _with_v1(base_url: str) -> str:
    """The address as the client takes it: a bare host means its ``/v1``."""
    place = urlsplit(base_url)
    if place.scheme not in ("http", "https") or not place.hostname:
        raise typer.BadParameter("--base-url is an address such as http://127.0.0.1:8080/v1.")
    return base_url.rstrip("/") if place.path.strip("/") else f"{base_url.rstrip('/')}/v1"
