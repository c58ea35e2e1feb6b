"""The laboratory of pg_cyclone: private PostgreSQL servers for its tests, its demo and its benchmarks.

postgres    where the programs of a PostgreSQL come from, and how to run one
build       the extension, built and installed into a PostgreSQL of its own
cluster     a temporary server
background  statements that run beside the test, and VACUUMs that stand still where it wants them
checks      the proof that a table is sound after a VACUUM
"""
