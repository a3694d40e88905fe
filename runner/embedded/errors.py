"""What can go wrong with the embedded services, as sentences that say what to do."""

from runner.domain.errors import RunnerError


class EmbeddedError(RunnerError):
    """An embedded service can't be started, reached or stopped."""

    code = "embedded_services"


class StartCancelled(EmbeddedError):
    """The start was given up because the caller is stopping."""

    code = "start_cancelled"
