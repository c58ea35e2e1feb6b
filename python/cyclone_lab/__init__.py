"""The laboratory of pg_cyclone: private PostgreSQL servers for its tests, its demo and its benchmarks.

postgres  where the programs of a PostgreSQL come from, and how to run one
build     the extension, built and installed into a PostgreSQL of its own
cluster   a temporary server
checks    the proof that a table is sound after a VACUUM
"""
