"""The limits of an installation: ours, OpenAI's by name, or any by number."""

import pytest
from pydantic import ValidationError

from runner.config import Settings


def test_the_profile_of_openai_gives_its_limits_unless_one_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Settings().max_job_lines == 1_000_000
    monkeypatch.setenv("TOKENMILL_LIMITS", "openai")
    assert (Settings().max_job_lines, Settings().max_file_bytes) == (50_000, 200 * 1024**2)
    monkeypatch.setenv("TOKENMILL_MAX_JOB_LINES", "7")
    assert (Settings().max_job_lines, Settings().max_file_bytes) == (7, 200 * 1024**2)
    with pytest.raises(ValidationError):
        Settings(limits="none")  # type: ignore[arg-type]


def test_a_place_has_a_scheme_or_is_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_PLACES", "/srv/in s3://acme/{project} http://hooks.intern:8080")
    assert Settings().stores == ("/srv/in", "s3://acme/{project}")
    assert Settings().webhook_hosts == ("hooks.intern",)
    monkeypatch.setenv("TOKENMILL_PLACES", "file:///srv/in hooks.intern")
    with pytest.raises(ValidationError, match="http://HOST"):
        Settings()


def test_the_settings_stay_few() -> None:
    for_debugging = {"failpoints"}
    assert len(Settings.model_fields.keys() - for_debugging) <= 18
