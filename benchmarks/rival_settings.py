"""The same project with django-tasks-db in our place, on a scratch database of its own."""

from benchmarks import settings

# Kept open: by Django's default it would open new connections for each run.
DATABASES = {"default": {**settings.DATABASES["rival"], "CONN_MAX_AGE": None}}
SECRET_KEY = settings.SECRET_KEY
USE_TZ = True
INSTALLED_APPS = ["django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
