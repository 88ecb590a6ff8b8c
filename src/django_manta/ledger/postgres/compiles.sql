-- Whether what is planned on this connection may be compiled: the server can, and nobody has switched it off.
SELECT pg_jit_available()
