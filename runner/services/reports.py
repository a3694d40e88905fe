"""The truth after a run: tokens, money and latency of one job."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from runner.db.models import Model, UsageDay
from runner.domain.ids import ProjectId
from runner.services.alerts import AlertRecord, alerts_of
from runner.services.job_accounts import Account, Waste, job_account, job_waste
from runner.services.job_records import JobRecord
from runner.services.job_totals import Totals, totals_by_model
from runner.services.jobs import get_job


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job's figures. Money is in integer nano-units, times are in microseconds.

    ``models`` has those of its lines that succeeded, by the name of their model.
    """

    job: JobRecord
    models: Mapping[str, Totals]
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
        _by_model(session, job),
        job_account(session, job_id),
        job_waste(session, job_id),
        tuple(alerts_of(session, [job_id]).get(job_id, ())),
    )


def _by_model(session: Session, job: JobRecord) -> dict[str, Totals]:
    """By the roll-up once the job has ended, for that is exact then and stays."""
    if job.state.is_terminal:
        sums = [
            func.sum(column)
            for column in (
                UsageDay.lines,
                UsageDay.prompt_tokens,
                UsageDay.cached_tokens,
                UsageDay.output_tokens,
                UsageDay.billed_nano,
                UsageDay.run_cost_nano,
                UsageDay.reused_lines,
            )
        ]
        query = select(UsageDay.model_id, *sums).where(UsageDay.job_id == job.id)
        rows = session.execute(query.group_by(UsageDay.model_id))
        found = {row[0]: Totals(int(row[1]), 0, *map(int, row[2:])) for row in rows}
    else:
        totals = totals_by_model(session, [job.id]).items()
        found = {model_id: replace(each, failed=0) for (_, model_id), each in totals}
    names = select(Model.name, Model.id).where(Model.id.in_(found)).order_by(Model.name)
    return {name: found[model_id] for name, model_id in session.execute(names)}
