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

#include "compat.h"

/*
 * relations_vacuum
 *		Vacuums the named relations, or the whole database if there are none.
 *
 * Called outside a transaction block, in a transaction as of a statement's start;
 * returns in another one, for the caller to commit.  named, params and ring are in
 * context, or in other memory that outlives transactions.  Skips relations that can't be
 * processed, with the warnings that the server has.
 */
extern void relations_vacuum(List *named, const VacuumParams *params,
							 BufferAccessStrategy ring,
							 MemoryContext context);

/*
 * relations_go_on
 *		Vacuums the tables of a lazy VACUUM that the server hasn't come to, when an audit has
 *		failed on one of several.
 *
 * Called where its error is caught, after relations_begin_lazy; returns in a transaction, for
 * the caller to commit.  Raises an error at the end, or at once if no table is left.
 */
extern void relations_go_on(List *named, const VacuumParams *params,
							BufferAccessStrategy ring, MemoryContext context);

/*
 * relations_begin_lazy
 *		Begins to note to which tables a lazy VACUUM of the server comes, in context, until
 *		relations_end_lazy.  relations_note_lazy notes one, if that has begun.
 */
extern void relations_begin_lazy(MemoryContext context);
extern void relations_note_lazy(Oid relid);
extern bool relations_lazy_has_begun(void);
extern void relations_end_lazy(void);

/* relations_audit_has_failed -- is the error in hand an audit's? */
extern bool relations_audit_has_failed(void);

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
