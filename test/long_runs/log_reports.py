"""The report that the server's log has of a vacuum of one table, as the programs that read logs know it.

pgBadger and pganalyze look for these lines, here in words of our own: the first one at the beginning of a message, then the others, in
this order. They take what follows for no more than the rest of the message.
"""

import re

# With a question mark those that aren't always there, with an asterisk those of which there may be several
_LINES = (
    r'automatic (?:aggressive )?vacuum (?:to prevent wraparound )?of table "(?P<table>[^"\s]+)": index scans: \d+',
    r"pages: \d+ removed, \d+ remain, \d+ scanned \([\d.]+% of total\)(?:, \d+ eagerly scanned)?",
    r"tuples: (?P<removed>\d+) removed, (?P<remain>\d+) remain, \d+ are dead but not yet removable",
    r"?tuples missed: \d+ dead from \d+ pages not removed due to cleanup lock contention",
    r"?removable cutoff: \d+, which was \d+ XIDs old when operation ended",
    r"?new relfrozenxid: \d+, which is \d+ XIDs ahead of previous value",
    r"?new relminmxid: \d+, which is \d+ MXIDs ahead of previous value",
    r"?frozen: \d+ pages from table \([\d.]+% of total\) had \d+ tuples frozen",
    r"?visibility map: \d+ pages set all-visible, \d+ pages set all-frozen \(\d+ were all-visible\)",
    r"index scan (?:not needed|needed|bypassed|bypassed by failsafe): \d+ pages from table"
    r" \([\d.]+% of total\) (?:have|had) \d+ dead item identifiers(?: removed)?",
    r"?parallel workers: index vacuum: \d+ planned, \d+ launched in total",
    r"?parallel workers: index cleanup: \d+ planned, \d+ launched",
    r'*index ".+": pages: \d+ in total, \d+ newly deleted, \d+ currently deleted, \d+ reusable',
    r"?delay time: [\d.]+ ms",
    r"?I/O timings: read: [\d.]+ ms, write: [\d.]+ ms",
    r"avg read rate: [\d.]+ MB/s, avg write rate: [\d.]+ MB/s",
    r"buffer usage: \d+ hits, \d+ (?:misses|reads), \d+ dirtied",
    r"WAL usage: \d+ records, \d+ full page images, \d+ bytes(?:, \d+ full page image bytes)?(?:, \d+ buffers full)?",
    r"?memory usage: .+",
    r"system usage: CPU: user: [\d.]+ s, system: [\d.]+ s, elapsed: [\d.]+ s",
)
# Groups: table, removed, remain; what comes after PostgreSQL's own lines is not part of it
REPORT = re.compile("".join((rf"(?:{line[1:]}\n\s*){line[0]}" if line[0] in "?*" else rf"{line}\n\s*") for line in _LINES))
