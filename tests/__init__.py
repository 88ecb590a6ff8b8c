"""The tests. They run on PostgreSQL and on SQLite: see settings.py and databases.py."""
