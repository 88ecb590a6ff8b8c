"""A small app that stands for the user's own: tasks, and a model on which their effects show."""
