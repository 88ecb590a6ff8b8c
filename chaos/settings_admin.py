"""The settings of the storms, and Django's admin."""

from chaos.settings import *  # noqa: F403
from chaos.settings import INSTALLED_APPS as OF_THE_STORMS
from chaos.settings import TASKS as THEIR_TASKS

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    *OF_THE_STORMS,
]
TASKS = {"default": {**THEIR_TASKS["default"], "QUEUES": ["default", "io", "by-hand"]}}
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
# The session travels with the browser.
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
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
