/*-------------------------------------------------------------------------
 *
 * repack.c
 *	  Which relations a REPACK rewrites, and each one's transaction.
 *
 * REPACK rewrites a table as VACUUM FULL does.  The steps before and after that are those
 * of the server's REPACK.  It rewrites a named table in the transaction of the statement,
 * under the lock with which its name was looked up, and raises an error if that isn't
 * possible; ANALYZE follows in a transaction of its own.  It lists the partitions of a
 * partitioned table, or all tables of the database, and rewrites each in one transaction.
 * Then it skips tables that the user may not repack, with a warning.  Those that are gone,
 * and temporary tables of other sessions, it skips without one.  datfrozenxid is left to
 * VACUUM.
 *
 * The server repacks tables that we can't rewrite, such as catalogs, in the same
 * transaction and under the same lock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "command/distributed.h"
#include "command/relations.h"
#include "command/repack.h"
#include "compat.h"
#include "history/history.h"
#include "transaction.h"

static void repack_all(VacuumRelation *named, const VacuumParams *params,
					   MemoryContext context);
static Relation open_named(const VacuumRelation *named);
static List *list_partitions(Oid parent, MemoryContext context);
static bool is_to_be_repacked(Form_pg_class form, bits32 options);
static bool is_permitted(Oid relid);
static void repack_listed(Oid relid, const VacuumParams *params);
static void repack_open(Relation rel, const VacuumParams *params, bool is_named);
static void repack_by_server(Relation rel, const VacuumParams *params, bool is_named);
static void analyze_named(Oid relid, List *columns, const VacuumParams *params);

/* repack_relations -- see repack.h. */
void
repack_relations(VacuumRelation *named, const VacuumParams *params, MemoryContext context)
{
	const bool	deferrable = DefaultXactDeferrable;

	Assert(IsTransactionState());
	Assert(ActiveSnapshotSet());

	PG_TRY();
	{
		/* as in relations_vacuum */
		DefaultXactDeferrable = false;
		relations_reset_costs();
		repack_all(named, params, context);
	}
	PG_FINALLY();
	{
		DefaultXactDeferrable = deferrable;
		history_fail();
		relations_end();
	}
	PG_END_TRY();
}

/*
 * repack_all
 *		Does what repack_relations has to do, but for the end.
 */
static void
repack_all(VacuumRelation *named, const VacuumParams *params, MemoryContext context)
{
	List	   *targets;

	if (named != NULL)
	{
		Relation	rel = open_named(named);
		Oid			relid = RelationGetRelid(rel);

		if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		{
			repack_open(rel, params, true);
			transaction_end();
			history_end();
			StartTransactionCommand();
			if (params->options & VACOPT_ANALYZE)
				analyze_named(relid, named->va_cols, params);
			return;
		}
		if (params->options & VACOPT_ANALYZE)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot execute %s on multiple tables", "REPACK (ANALYZE)")));
		targets = list_partitions(relid, context);
		table_close(rel, AccessExclusiveLock);
	}
	else
		targets = relations_of_database(is_to_be_repacked, params->options, context);

	transaction_end();
	foreach_node(VacuumRelation, target, targets)
		repack_listed(target->oid, params);
	StartTransactionCommand();
}

/*
 * open_named
 *		Opens a relation by its name, under the lock for a rewrite.
 *
 * Raises an error if it doesn't exist, is no table, if the user may not repack
 * it, or if it is temporary and another session's.
 */
static Relation
open_named(const VacuumRelation *named)
{
	Oid			relid = RangeVarGetRelidExtended(named->relation, AccessExclusiveLock, 0,
												 RangeVarCallbackMaintainsTable, NULL);
	Relation	rel = table_open(relid, NoLock);

	if (RELATION_IS_OTHER_TEMP(rel))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot execute %s on temporary tables of other sessions", "REPACK")));
	return rel;
}

/*
 * list_partitions
 *		Lists the partitions of a partitioned table, on which the caller has a lock,
 *		that the user may repack, but no foreign tables.
 */
static List *
list_partitions(Oid parent, MemoryContext context)
{
	List	   *targets = NIL;
	List	   *family = find_all_inheritors(parent, NoLock, NULL);

	foreach_oid(relid, family)
	{
		if (get_rel_relkind(relid) == RELKIND_RELATION && is_permitted(relid))
			targets = relations_append(targets, NULL, relid, NIL, context);
	}
	list_free(family);
	return targets;
}

/*
 * is_to_be_repacked
 *		Does a REPACK of the database, catalogs included, repack a relation, which the user
 *		may repack?
 */
static bool
is_to_be_repacked(Form_pg_class form, bits32 options)
{
	if (form->relkind != RELKIND_RELATION && form->relkind != RELKIND_MATVIEW)
		return false;
	if (form->relpersistence == RELPERSISTENCE_TEMP &&
		!isTempOrTempToastNamespace(form->relnamespace))
		return false;
	return is_permitted(form->oid);
}

/*
 * is_permitted
 *		May the user repack a relation?  Warns if not, unless it is gone.
 */
static bool
is_permitted(Oid relid)
{
	bool		is_missing = false;
	bool		may = pg_class_aclcheck_ext(relid, GetUserId(), ACL_MAINTAIN,
											&is_missing) == ACLCHECK_OK;
	char	   *name;

	if (!may && !is_missing && (name = get_rel_name(relid)) != NULL)
		ereport(WARNING,
				(errmsg("permission denied to execute %s on \"%s\", skipping it",
						"REPACK", name)));
	return may && !is_missing;
}

/*
 * repack_listed
 *		Repacks one of several tables, in a transaction of its own, if it is still
 *		there, and still one that the user may repack.
 *
 * It takes the snapshot after the lock, so that the snapshot doesn't need rows that die
 * while we wait for the lock.
 */
static void
repack_listed(Oid relid, const VacuumParams *params)
{
	Relation	rel;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	rel = try_table_open(relid, AccessExclusiveLock);
	if (rel == NULL)
	{
		CommitTransactionCommand();
		return;
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	if (is_permitted(relid) && !RELATION_IS_OTHER_TEMP(rel))
		repack_open(rel, params, false);
	else
		relation_close(rel, AccessExclusiveLock);
	transaction_end();
	history_end();
}

/*
 * repack_open
 *		Repacks a table that is open and locked exclusively, and closes it.  The lock
 *		remains.
 */
static void
repack_open(Relation rel, const VacuumParams *params, bool is_named)
{
	const char *is_what;

	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, false));

	CHECK_FOR_INTERRUPTS();
	/* checked before, but without a lock */
	if (distributed_table_is_for_other(RelationGetRelid(rel), &is_what))
	{
		ereport(WARNING,
				(errmsg("skipping \"%s\" --- it is now %s",
						RelationGetRelationName(rel), is_what)));
		relation_close(rel, NoLock);
	}
	else if (relation_is_for_server(rel, params))
		repack_by_server(rel, params, is_named);
	else
		relation_rewrite(rel, REPACK_COMMAND_REPACK, params);
}

/*
 * repack_by_server
 *		Has the server repack a table that we can't rewrite.
 *
 * The server has no parallel workers for that.  If the statement has PARALLEL, there is a
 * warning if it names the table, and otherwise a line of VERBOSE.
 */
static void
repack_by_server(Relation rel, const VacuumParams *params, bool is_named)
{
	bool		verbose = (params->options & VACOPT_VERBOSE) != 0;

	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, false));
	elog(DEBUG1, "pg_cyclone leaves relation %u to the server's REPACK",
		 RelationGetRelid(rel));
	if (params->nworkers > 0)
		ereport(is_named ? WARNING : verbose ? INFO : DEBUG1,
				(errmsg("disabling parallel option of repack on \"%s\" --- it is left to PostgreSQL",
						RelationGetRelationName(rel))));
	compat_repack_by_server(rel, verbose);
}

/*
 * analyze_named
 *		Analyzes the named table, in the new transaction, without an exclusive lock.
 */
static void
analyze_named(Oid relid, List *columns, const VacuumParams *params)
{
	VacuumParams analyze_params = {
		.options = VACOPT_ANALYZE | (params->options & VACOPT_VERBOSE)
	};

	PushActiveSnapshot(GetTransactionSnapshot());
	analyze_rel(relid, NULL, &analyze_params, columns, true, NULL);
	PopActiveSnapshot();
}
