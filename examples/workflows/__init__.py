"""Five workflows to copy from: an app that any project can install, and that the tests run."""
