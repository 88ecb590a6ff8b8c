"""Where user code runs. The queue chooses the runner; the executor is the same in each."""
