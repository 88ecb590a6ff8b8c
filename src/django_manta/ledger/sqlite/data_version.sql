-- A number that changes with every commit of another connection. Read from the file's header: no table is touched.
PRAGMA data_version
