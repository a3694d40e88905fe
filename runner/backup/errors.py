"""What can go wrong with a backup, each with a code and a sentence that says what to do."""

from runner.domain.errors import RunnerError


class BackupError(RunnerError):
    """A backup could not be made, or is not one that can be restored here."""

    code = "backup_failed"
