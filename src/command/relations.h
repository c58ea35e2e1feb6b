/*-------------------------------------------------------------------------
 *
 * relations.h
 *	  Which relations a VACUUM processes, and each one's transactions.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_RELATIONS_H
#define CYCLONE_RELATIONS_H

#include "catalog/pg_class.h"
#include "commands/vacuum.h"
#include "nodes/pg_list.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "command/options.h"
#include "compat.h"

/*
 * relations_vacuum
 *		Vacuums the named relations, or the whole database if there are none.
 *
 * Called outside a transaction block, in a transaction as of a statement's start;
 * returns in another one, for the caller to commit.  named, params and ring are in
 * context, or in other memory that outlives transactions.  Skips relations that can't be
 * processed, with the warnings that the server has.  Raises an error at the end if audits have
 * failed on some of several relations, or on naudits_failed_before others of the statement.
 */
extern void relations_vacuum(List *named, const VacuumParams *params,
							 BufferAccessStrategy ring,
							 MemoryContext context, int naudits_failed_before);

/*
 * relations_can_go_on
 *		Is the error in hand an audit's, of a VACUUM whose tables are noted?
 */
extern bool relations_can_go_on(void);

/*
 * relations_go_on
 *		Vacuums the tables of a lazy VACUUM that the server hasn't come to, in the order of
 *		the statement, and raises an error.
 *
 * Called where an audit's error is caught, with what is noted of that VACUUM.  named and ring
 * are in memory that outlives transactions.  If no table is left, or another library takes
 * part in the statement, the error is the audit's.
 */
extern void relations_go_on(List *named, const VacuumOptions *options,
							BufferAccessStrategy ring);

/*
 * relations_note_tables
 *		Begins to note, in the portal's memory, to which tables a lazy VACUUM comes; or ends
 *		that, and forgets them.  relations_note_table notes one, if that has begun.
 */
extern void relations_note_tables(bool on);
extern void relations_note_table(Oid relid);

/*
 * relations_are_vacuumed
 *		Is a VACUUM (FULL) of ours at work in this session, or is this a worker of a
 *		VACUUM?
 *
 * If a statement comes then, a function in an index expression has called it.
 */
extern bool relations_are_vacuumed(void);

/*
 * relations_list
 *		Lists the targets that the named relations stand for, or those of the whole
 *		database if there are none, in context.  Leaves no lock on them.
 */
extern List *relations_list(List *named, bits32 options, MemoryContext context);

/*
 * relations_append
 *		Appends one target, in context.
 *
 * There is a warning if a target with a name can't be opened.
 */
extern List *relations_append(List *targets, RangeVar *name, Oid relid, List *columns,
							  MemoryContext context);

/*
 * relations_of_database
 *		Lists those relations of the database that are wanted as targets without names, in
 *		context.  is_wanted warns of those that the user lacks the privilege for.
 */
extern List *relations_of_database(bool (*is_wanted) (Form_pg_class form, bits32 options),
								   bits32 options, MemoryContext context);

/*
 * relations_apply_reloptions
 *		Fills in from the table's options what the statement leaves open.
 */
extern void relations_apply_reloptions(Relation rel, VacuumParams *params);

/* relations_reset_costs -- starts the cost accounting of VACUUM anew, by the settings. */
extern void relations_reset_costs(void);

/* relations_end -- clears the state that must not outlive the last relation, or an error. */
extern void relations_end(void);

/*
 * relation_is_for_server
 *		Is this relation, open and locked, one that the server has to vacuum or repack?
 *
 * Warns if that is because an audit has failed on it.
 */
extern bool relation_is_for_server(Relation rel, const VacuumParams *params);

/*
 * relation_rewrite
 *		Rewrites a table that is open under AccessExclusiveLock, as its owner, in a safe
 *		environment, and closes it.  The lock remains.
 */
extern void relation_rewrite(Relation rel, RepackCommand command, const VacuumParams *params);

#endif							/* CYCLONE_RELATIONS_H */
