/*-------------------------------------------------------------------------
 *
 * options.h
 *	  The options of a VACUUM or REPACK statement.
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

/* FULL INPLACE; VACOPT_FULL isn't set beside it, as the two have little in common */
#define VACOPT_INPLACE	((bits32) 1 << 30)

typedef struct VacuumOptions
{
	VacuumParams params;		/* reloptions not applied yet */
	int			ring_size_kb;	/* BUFFER_USAGE_LIMIT, -1 if not given */
	bool		is_repack;
	VacOptValue adaptive_delay; /* ADAPTIVE_DELAY */
} VacuumOptions;

/*
 * vacuum_options_read
 *		Reads the options of a VACUUM, and doesn't change the statement.
 *
 * Returns false if the server raises an error for them, or may raise one.  Raises an
 * error itself for options that the server doesn't know.  VACOPT_ONLY_DATABASE_STATS may
 * be set in the result: the caller checks whether it can do that.  index_cleanup,
 * truncate and adaptive_delay are VACOPTVALUE_UNSPECIFIED if the statement doesn't have them.
 */
extern bool vacuum_options_read(const VacuumStmt *stmt, VacuumOptions *options);

/*
 * vacuum_options_have_dry_run
 *		Does a VACUUM have the option DRY_RUN?  If so, *on is its value, the last one if
 *		there are several.
 */
extern bool vacuum_options_have_dry_run(const VacuumStmt *stmt, bool *on);

/* options_have -- is there an option of this name in a list? */
extern bool options_have(const List *list, const char *name);

/* options_without -- returns a list of the options of another name. */
extern List *options_without(const List *list, const char *name);

/* vacuum_options_need_engine -- raises an error for an option of ours if the engine is off. */
extern void vacuum_options_need_engine(const char *option);

/* vacuum_options_refuse -- raises the error for an option of ours that can't be used with another. */
extern void vacuum_options_refuse(const char *option, const char *with);

/* vacuum_options_are_ours -- has a statement FULL with a value that the server doesn't know? */
extern bool vacuum_options_are_ours(const VacuumStmt *stmt);

/*
 * vacuum_options_explain_faults
 *		Raises the error that the server would raise for options of a VACUUM, where
 *		ours can say what to do about it.  Tells the user if the statement asks for more
 *		workers than the server allows.
 */
extern void vacuum_options_explain_faults(const VacuumStmt *stmt);

/*
 * vacuum_options_for_server
 *		Returns a list of the options that the server knows, and changes them: without
 *		ADAPTIVE_DELAY, with FULL for FULL REWRITE, and without a FULL INPLACE that
 *		another FULL follows, as the last one counts.
 *
 * A FULL INPLACE that counts comes last.  The server has another reason to refuse such a
 * statement, and so its error is about that.
 */
extern List *vacuum_options_for_server(List *list);

/*
 * vacuum_options_make_ring
 *		Makes the buffer ring for a statement, in the current memory context.
 *
 * Returns NULL if the size of the statement, or else of the setting, is 0: then VACUUM
 * uses all of shared buffers.
 */
extern BufferAccessStrategy vacuum_options_make_ring(const VacuumOptions *options);

/*
 * repack_options_read
 *		Reads the options of a REPACK.  params are those of the VACUUM FULL that does the
 *		same.
 *
 * Returns false if the server has to run the statement: if the server raises an error for
 * the options, or if it is a REPACK CONCURRENTLY or by an index.  Raises an error if the
 * value of PARALLEL is wrong, or if the server has to run a statement with PARALLEL.
 */
extern bool repack_options_read(const RepackStmt *stmt, VacuumOptions *options);

#endif							/* CYCLONE_OPTIONS_H */
