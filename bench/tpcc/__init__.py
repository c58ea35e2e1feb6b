"""How VACUUM disturbs those who use the database: a load like TPC-C's while its tables are vacuumed, setting by setting.

schema.sql     the nine tables, and functions that the loader and the scripts share
scripts/       the five transactions, as pgbench scripts
load           fills the tables, and ages them, so that there is something to vacuum
transactions   the mix of the scripts
settings       the ways to vacuum that are compared
measure        one run for each setting, on equal copies of the loaded data
report         what comes out
__main__       the command line
"""
