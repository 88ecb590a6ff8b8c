"""
Django's own tests of its tasks framework, run against our backend: ``make conformance``.

``run.py`` fetches the tests of the installed Django, rewrites what ties them to Django's two example
backends, and runs them. ``backends.py`` has what stands where those two stood, ``case.py`` the test
case that lets these tests use a database and watches that they do.
"""
