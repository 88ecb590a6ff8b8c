"""
Storms: kill what can be killed, stop what can be stopped, and count what was lost.

``python -m chaos`` runs them all; each module here is one storm. They start real workers as a person
would, and look at nothing but the tables. ``world.py`` has what they share.
"""
