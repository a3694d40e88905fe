"""The entry point of beat: it sends names at their times, and knows neither tasks nor database.

So it imports a third of what a worker does, and leaves the start of an installation to others.
"""

from runner.celery_app import create_celery
from runner.config import load_settings
from runner.log import configure_logging

_settings = load_settings()
configure_logging(_settings)
if _settings.broker_url is None:
    raise SystemExit("beat needs the address of the broker: set BROKER_URL")
app = create_celery(_settings.broker_url, _settings.tick_seconds)
