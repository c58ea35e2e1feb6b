/*-------------------------------------------------------------------------
 *
 * verbose.h
 *	  The report on a finished VACUUM.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_VERBOSE_H
#define CYCLONE_VERBOSE_H

#include "commands/vacuum.h"
#include "executor/instrument.h"
#include "lib/stringinfo.h"
#include "pgstat.h"
#include "utils/pg_rusage.h"
#include "utils/rel.h"

#include "report/result.h"

/* What the server had counted when the vacuum began. */
typedef struct ReportStart
{
	TimestampTz time;
	PGRUsage	rusage;
	PgStat_Counter read_time;
	PgStat_Counter write_time;
	WalUsage	wal;
	BufferUsage buffers;
} ReportStart;

/* report_is_wanted -- could there be a report on this vacuum, to the client or the log? */
extern bool report_is_wanted(const VacuumParams *params);

/* report_command_is_for_log -- is a command logged that took this long on a table? */
extern bool report_command_is_for_log(double seconds);

/*
 * report_append_command
 *		Append a line that says which user has run a command.  The caller is in a
 *		transaction.
 */
extern void report_append_command(StringInfo buf, const char *command);

/* report_append_held -- append for how long each guard has held the run; nothing for a guard that hasn't. */
extern void report_append_held(StringInfo buf);

/* report_begin -- note the server's counters, for report_end. */
extern void report_begin(ReportStart *start);

/*
 * report_end
 *		Tell the client, the log, or both what was done to rel since report_begin.
 *
 * The caller is in a transaction, and has rel open.
 */
extern void report_end(const ReportStart *start, const VacuumParams *params,
					   Relation rel, const TableResult *result);

#endif							/* CYCLONE_VERBOSE_H */
