/*-------------------------------------------------------------------------
 *
 * index_shrink.c
 *	  Making a table's bloated indexes small again, while others use them.
 *
 * By the server's REINDEX CONCURRENTLY, one index at a time, so that the disk has
 * to take no more than one new index beside the old ones.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_namespace.h"
#include "commands/defrem.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_node.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "bloat/bloat.h"
#include "inplace/inplace.h"
#include "report/progress.h"
#include "transaction.h"

/* Smaller indexes aren't worth the trouble, nor is less of a gain. */
#define SMALL_INDEX_PAGES	16
#define BLOATED_FRACTION	0.04

/* How many pages to look at for that */
#define SAMPLE_PAGES		1000

static List *bloated_indexes(Oid relid, MemoryContext context);
static bool is_bloated(Relation index);
static void reindex(Oid index, MemoryContext context);

/*
 * index_shrink
 *		Build a table's bloated indexes anew.
 *
 * Called and returns outside any transaction, with the table locked for the
 * session.  What must outlive transactions lives in context.
 */
void
index_shrink(Oid relid, MemoryContext context)
{
	foreach_oid(index, bloated_indexes(relid, context))
	{
		progress_begin(relid, MyProcPid);
		progress_phase(PROGRESS_INPLACE_REINDEX, 0);
		progress_index(index, 0);
		reindex(index, context);
		progress_clear();
	}
}

/*
 * bloated_indexes
 *		List, in context, the indexes that are worth it and can be built anew; warn
 *		of those that can't.
 */
static List *
bloated_indexes(Oid relid, MemoryContext context)
{
	List	   *bloated = NIL;
	Relation	rel;

	begin_vacuum_transaction(false);
	rel = table_open(relid, ShareUpdateExclusiveLock);
	foreach_oid(oid, RelationGetIndexList(rel))
	{
		Relation	index = index_open(oid, AccessShareLock);
		Form_pg_index form = index->rd_index;

		if (!form->indisvalid || !form->indisready || !is_bloated(index))
			 /* nothing to do, or no way to tell */ ;
		else if (form->indisexclusion)
			ereport(WARNING,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("index \"%s\" of an exclusion constraint stays bloated, as it cannot be rebuilt concurrently",
							RelationGetRelationName(index)),
					 errhint("REINDEX INDEX makes it small; nobody can write to the table meanwhile.")));
		else
		{
			MemoryContext old = MemoryContextSwitchTo(context);

			bloated = lappend_oid(bloated, oid);
			MemoryContextSwitchTo(old);
		}
		index_close(index, AccessShareLock);
	}

	/* as REINDEX will check it; not all who may VACUUM may do that, too */
	if (bloated != NIL &&
		(object_aclcheck(NamespaceRelationId, RelationGetNamespace(rel), GetUserId(),
						 ACL_USAGE) != ACLCHECK_OK ||
		 pg_class_aclcheck(relid, GetUserId(), ACL_MAINTAIN) != ACLCHECK_OK))
	{
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to reindex \"%s\", leaving its indexes as they are",
						RelationGetRelationName(rel)),
				 errhint("That takes the MAINTAIN privilege on it, and USAGE on its schema.")));
		bloated = NIL;
	}
	table_close(rel, NoLock);
	end_transaction();
	return bloated;
}

/*
 * is_bloated
 *		Would an index be smaller if it were built anew?
 *
 * Only of btrees it is known how large they would be.  The table has just been
 * vacuumed, so all entries lead to rows.
 */
static bool
is_bloated(Relation index)
{
	BlockNumber pages = RelationGetNumberOfBlocks(index);
	BloatEstimate vacuumed = {0};
	BloatEstimate estimate = {0};
	pg_prng_state prng = pg_global_prng_state;

	if (index->rd_rel->relam != BTREE_AM_OID || pages <= SMALL_INDEX_PAGES)
		return false;
	btree_bloat(index, SAMPLE_PAGES, &prng, &vacuumed, &estimate);
	return pages * (1 - BLOATED_FRACTION) > estimate.rewritten_pages;
}

/*
 * reindex
 *		Run REINDEX INDEX CONCURRENTLY.
 *
 * Context keeps what must outlive its transactions.
 */
static void
reindex(Oid index, MemoryContext context)
{
	MemoryContext old;
	ReindexStmt *stmt;

	StartTransactionCommand();
	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(index)))
	{
		CommitTransactionCommand();
		return;
	}
	old = MemoryContextSwitchTo(context);
	stmt = makeNode(ReindexStmt);
	stmt->kind = REINDEX_OBJECT_INDEX;
	stmt->relation = makeRangeVar(get_namespace_name(get_rel_namespace(index)),
								  get_rel_name(index), -1);
	stmt->params = list_make1(makeDefElem("concurrently", NULL, -1));
	MemoryContextSwitchTo(old);
	/* indexes are renamed without a lock on the table */
	if (RangeVarGetRelid(stmt->relation, NoLock, true) != index)
	{
		CommitTransactionCommand();
		return;
	}

	/* it commits this transaction, and returns in another one */
	PushActiveSnapshot(GetTransactionSnapshot());
	ExecReindex(make_parsestate(NULL), stmt, true);
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
}
