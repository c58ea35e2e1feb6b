"""The laboratory of pg_cyclone: private PostgreSQL servers for its tests, its demo and its benchmarks.

postgres    where the programs of a PostgreSQL come from, and how to run one
build       the extension, built and installed into a PostgreSQL of its own
cluster     a temporary server
background  statements that run beside the test, and VACUUMs that stand still where it wants them
checks      the proof that a table is sound after a VACUUM
power       a server whose power can be cut
shim        a disk that fails or gets slow on command

and for long runs, of which tests have short ones:

workload    tables of many kinds, their writers, and a ledger of what was committed
statements  random VACUUMs of each kind
log_reports what programs that read logs know of a VACUUM
autovacuum  autovacuum as a driver, and what it came to
load        the sessions of a workload
twin_tables two equal tables, and sessions that compare them as they go
proof       what must hold of its tables
crash_test, power_test, fault_test, damage_test, soak, twins   the programs
"""
