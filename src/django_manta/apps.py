from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class MantaConfig(AppConfig):
    name = "django_manta"
    label = "manta"
    verbose_name = _("Background runs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Nothing in Django imports django.tasks, so its checks would stay silent without this.
        import django.tasks  # noqa: F401

        from django_manta import checks  # noqa: F401
