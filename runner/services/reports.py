"""The truth after a run: tokens, money and latency of one job."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from runner.domain.ids import ProjectId
from runner.services.alerts import AlertRecord, alerts_of
from runner.services.job_accounts import Account, Waste, job_account, job_waste
from runner.services.job_records import JobRecord
from runner.services.jobs import get_job


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job's figures. Money is in integer nano-units, times are in microseconds."""

    job: JobRecord
    account: Account
    waste: Waste
    alerts: tuple[AlertRecord, ...]

    @property
    def margin_nano(self) -> int:
        """What is left of the bill once the device time of its lines is paid; may be negative."""
        return self.job.totals.billed_nano - self.job.totals.run_cost_nano


def job_report(session: Session, project_id: ProjectId, job_id: UUID) -> JobReport:
    """The report of a job of the project, also while it runs."""
    job = get_job(session, project_id, job_id)
    return JobReport(
        job,
        job_account(session, job_id),
        job_waste(session, job_id),
        tuple(alerts_of(session, [job_id]).get(job_id, ())),
    )
