"""The first errors of a job, whichever way its lines came to fail."""

from workshop import Workshop, make_item, make_items

from runner.services.line_errors import ErrorList, first_errors


def _errors(workshop: Workshop, job_id: object, limit: int = 20) -> ErrorList:
    return first_errors(workshop.sessions, workshop.job(job_id), limit)


def test_a_refused_file_tells_its_faults_by_line(workshop: Workshop) -> None:
    job_id = workshop.make_job(b"\n" + make_item("a") + b"\n" + b"nonsense\n" * 3)
    told = _errors(workshop, job_id, limit=2)
    assert told.total == 3
    assert [(error.line, error.custom_id, error.code) for error in told.shown] == [
        (3, None, "invalid_json_line"),
        (4, None, "invalid_json_line"),
    ]
    assert _errors(workshop, workshop.make_job(b"")).shown[0].line is None


def test_lines_that_failed_are_told_while_the_job_runs_and_afterwards(workshop: Workshop) -> None:
    lines = [make_item("good"), b"nonsense", make_item("hot", temperature=9), make_item("last")]
    job_id = workshop.make_job(lines, on_invalid="skip")
    assert [error.line for error in _errors(workshop, job_id).shown] == [2]
    workshop.drain()
    told = _errors(workshop, job_id)
    assert told.total == 2
    assert [(error.line, error.custom_id, error.code) for error in told.shown] == [
        (2, None, "invalid_json_line"),
        (3, "hot", "invalid_value"),
    ]
    assert "temperature" in told.shown[1].message


def test_lines_that_a_cancelled_job_never_ran_are_errors_too(workshop: Workshop) -> None:
    job_id = workshop.make_job(make_items(30))
    workshop.cancel(job_id)
    workshop.close_all()
    told = _errors(workshop, job_id)
    assert (len(told.shown), told.total) == (20, 30)
    assert {error.code for error in told.shown} == {"batch_cancelled"}
    assert told.shown[7].custom_id == "line-7"


def test_a_job_without_errors_tells_none(workshop: Workshop) -> None:
    job_id = workshop.make_job(2)
    workshop.drain()
    assert _errors(workshop, job_id) == ErrorList((), 0)
