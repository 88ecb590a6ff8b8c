def check_backend(backend):
    yield from ()
