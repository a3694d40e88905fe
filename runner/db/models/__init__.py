"""All tables. Rules that must always hold are constraints here, not habits of the code."""

from runner.db.models.accounts import Alert, JobAccount, JobWaste, LatencyDay, UsageDay, WorkerDay
from runner.db.models.base import Base
from runner.db.models.budgets import Budget, BudgetAlert, Spending
from runner.db.models.estimates import JobEstimate, ShardCount
from runner.db.models.events import AuditEntry, OutboxEvent
from runner.db.models.files import File, FileChunk, FileIndex
from runner.db.models.jobs import Job, JobError, JobModel
from runner.db.models.profiles import Profile
from runner.db.models.registry import Model, Price
from runner.db.models.retention import Retention
from runner.db.models.schedules import Schedule, ScheduleRun
from runner.db.models.tenants import ApiKey, Project, WebSession
from runner.db.models.uploads import Upload, UploadChunk, UploadPart
from runner.db.models.webhooks import Delivery, DeliveryAttempt, Webhook
from runner.db.models.work import AnswerKey, Copy, Result, Shard, Usage, WorkItem
from runner.db.models.workers import FairShare, Worker

__all__ = [
    "Alert",
    "AnswerKey",
    "ApiKey",
    "AuditEntry",
    "Base",
    "Budget",
    "BudgetAlert",
    "Copy",
    "Delivery",
    "DeliveryAttempt",
    "FairShare",
    "File",
    "FileChunk",
    "FileIndex",
    "Job",
    "JobAccount",
    "JobError",
    "JobWaste",
    "LatencyDay",
    "JobEstimate",
    "JobModel",
    "Model",
    "OutboxEvent",
    "Price",
    "Profile",
    "Project",
    "Result",
    "Retention",
    "Schedule",
    "ScheduleRun",
    "Shard",
    "Spending",
    "ShardCount",
    "Upload",
    "UploadChunk",
    "UploadPart",
    "Usage",
    "UsageDay",
    "WebSession",
    "Webhook",
    "WorkItem",
    "Worker",
    "WorkerDay",
]
