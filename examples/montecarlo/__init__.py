"""A small Django project that answers three questions about a share by simulation, on django-manta."""
