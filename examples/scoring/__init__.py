"""A small Django project that scores the rows of a table with a model, in batches, on Ray."""
