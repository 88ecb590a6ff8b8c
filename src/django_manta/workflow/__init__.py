"""
Workflows are runs that wait for runs.

A result given as an argument is a dependency; a task that returns a result delegates to it; ``Later`` asks
to be called again; a promise is settled from outside. What is public is exported by ``django_manta`` itself.
"""
