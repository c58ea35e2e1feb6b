/*-------------------------------------------------------------------------
 *
 * options.h
 *	  The options of a VACUUM, ANALYZE or REPACK statement.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_OPTIONS_H
#define CYCLONE_OPTIONS_H

#include "commands/vacuum.h"
#include "nodes/parsenodes.h"
#include "storage/bufmgr.h"

#include "compat.h"

/* FULL INPLACE: without VACOPT_FULL, as it is so unlike it */
#define VACOPT_INPLACE	((bits32) 1 << 30)

typedef struct VacuumOptions
{
	VacuumParams params;		/* reloptions not applied yet */
	int			ring_size_kb;	/* BUFFER_USAGE_LIMIT, -1 if not given */
	bool		is_repack;
	bool		has_latency_target;
	double		latency_target; /* LATENCY_TARGET, see pace.h */
} VacuumOptions;

extern bool vacuum_options_read(const VacuumStmt *stmt, VacuumOptions *options);
extern bool vacuum_options_have_dry_run(const VacuumStmt *stmt, bool *on);
extern List *vacuum_options_without_dry_run(List *list);
extern bool vacuum_options_are_ours(const VacuumStmt *stmt);
extern bool vacuum_options_have_full(const VacuumStmt *stmt);
extern bool vacuum_options_have_latency_target(const VacuumStmt *stmt);
extern void vacuum_options_read_latency_target(const VacuumStmt *stmt, VacuumOptions *options);
extern void vacuum_options_explain_faults(const VacuumStmt *stmt);
extern List *vacuum_options_for_server(List *list);
extern BufferAccessStrategy vacuum_options_make_ring(const VacuumOptions *options);

extern bool repack_options_read(const RepackStmt *stmt, VacuumOptions *options);
extern bool repack_options_have_parallel(const RepackStmt *stmt);
extern List *repack_options_for_server(List *list);

#endif							/* CYCLONE_OPTIONS_H */
