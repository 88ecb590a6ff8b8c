"""What both databases must do alike: one suite, run on each, through every kind of session."""
