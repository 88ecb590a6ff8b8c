"""A module of the project's that cannot be imported."""

raise RuntimeError("this module is broken")
