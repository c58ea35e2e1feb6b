/*-------------------------------------------------------------------------
 *
 * options.h
 *	  The options of a VACUUM or ANALYZE statement.
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

/* FULL INPLACE: without VACOPT_FULL, as it is so unlike it */
#define VACOPT_INPLACE	((bits32) 1 << 30)

typedef struct VacuumOptions
{
	VacuumParams params;		/* reloptions not applied yet */
	int			ring_size_kb;	/* BUFFER_USAGE_LIMIT, -1 if not given */
	bool		has_latency_target;
	double		latency_target; /* LATENCY_TARGET, see pace_settings.h */
} VacuumOptions;

extern bool vacuum_options_read(const VacuumStmt *stmt, VacuumOptions *options);
extern bool vacuum_options_are_ours(const VacuumStmt *stmt);
extern BufferAccessStrategy vacuum_options_make_ring(const VacuumOptions *options);

#endif							/* CYCLONE_OPTIONS_H */
