"""
``manage.py manta VERB``: everything an operator does, one module a verb in ``django_manta/commands``.

Django's own flags (``-v``, ``--settings``, …) are accepted after the verb, too.
"""

from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error as DatabaseError

from django_manta.commands import VERBS


class Command(BaseCommand):
    help = "Durable background runs: run a worker, look at runs, move them."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
        for name in VERBS:
            module = import_module(f"django_manta.commands.{name}")
            verb = verbs.add_parser(name, help=module.HELP, description=module.__doc__)
            self.add_base_argument(
                verb,
                "-v",
                "--verbosity",
                default=1,
                type=int,
                choices=[0, 1, 2, 3],
                help="0: only warnings, 1: normal, 2: every event of every run, 3: more.",
            )
            for flag, explained in (
                ("--settings", "The Python path to a settings module."),
                ("--pythonpath", "A directory to add to the Python path."),
            ):
                self.add_base_argument(verb, flag, help=explained)
            for flag, explained in (
                ("--traceback", "Display a full stack trace on CommandError exceptions."),
                ("--no-color", "Don't colorize the command output."),
                ("--force-color", "Force colorization of the command output."),
            ):
                self.add_base_argument(verb, flag, action="store_true", help=explained)
            verb.add_argument(
                "--backend", default="default", metavar="ALIAS", help="The alias in TASKS (default: default)."
            )
            module.add_arguments(verb)

    def handle(self, *args: Any, **options: Any) -> None:
        module = import_module(f"django_manta.commands.{options['verb']}")
        if getattr(module, "CHECKED", False):
            self.check()
        try:
            code = module.handle(self, options)
        except DatabaseError as error:
            words = " ".join(str(error).split())
            raise CommandError(f"The database refused: {words}. `manage.py manta doctor` says more.") from error
        if code:
            raise SystemExit(code)
