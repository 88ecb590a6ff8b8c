"""Settings of the tests: a Django project with nothing unusual but a second database."""

import json
import os

from tests import databases

SECRET_KEY = "tests-only-7f0c5b1d9e3a48268c4be2d6a1f05937-and-long-enough-to-pass-the-checks"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
ROOT_URLCONF = "tests.urls"
ASGI_APPLICATION = "tests.asgi.application"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True
STATIC_URL = "static/"

DATABASES = databases.from_environment()

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "django_manta",
    "tests.app",
    "examples.workflows",
]
MIGRATION_MODULES = {"testapp": None}  # its tables are made from its models

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # fast: no secret is kept here

TASKS = {
    "default": {
        "BACKEND": "django_manta.MantaBackend",
        # Workers that a test starts are given their settings through the environment.
        "QUEUES": json.loads(os.environ.get("MANTA_TEST_QUEUES", '["default", "urgent", "slow"]')),
        "OPTIONS": json.loads(os.environ.get("MANTA_TEST_OPTIONS", "{}")),
    },
}
