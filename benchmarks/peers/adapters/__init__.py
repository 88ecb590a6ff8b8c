"""
One module for each contender, with the settings that its documentation recommends for what is measured here.

``benchmarks.peers.measures.Adapter`` says what each offers. All of them get: connections that stay open, workers that
write nothing but warnings to their log, and two processes that execute one run at a time.
"""
