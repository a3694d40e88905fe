"""The end of a job: proven counts, exact files, one closer."""

from workshop import Workshop


def test_a_drained_job_is_completed(workshop: Workshop) -> None:
    job_id = workshop.make_job(10)
    workshop.drain()
    job = workshop.job(job_id)
    assert job.state == "completed"
    assert len(workshop.parsed(job_id, "output")) == 10
