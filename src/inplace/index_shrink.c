/*-------------------------------------------------------------------------
 *
 * index_shrink.c
 *	  Making a table's bloated indexes small again, while others use them.
 *
 * By the server's REINDEX CONCURRENTLY, one index at a time, so that the disk has
 * to take no more than one new index beside the old ones.
 *
 * The new index lacks row versions that had been deleted when its rows were
 * looked up for the last time.  On the primary it is used only when no snapshot is
 * left that could see them, but standbys are not asked for theirs.  So the WAL
 * tells them to end older snapshots first, as it tells them when VACUUM has
 * removed row versions.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/nbtxlog.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
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
#define ROUGHLY_BLOATED_FRACTION	0.25

/* How many pages to look at for that */
#define SAMPLE_PAGES		1000

/* An index that is being built anew */
typedef struct Rebuild
{
	Oid			index;
	bool		is_logged;
	RelFileLocator locator;
	bool		is_replaced;
} Rebuild;

static List *bloated_indexes(Oid relid, MemoryContext context);
static bool is_bloated(Relation index);
static void reindex(Oid index, MemoryContext context);
static bool rebuild_begin(Rebuild *rebuild, Oid index);
static void end_snapshots_on_standbys(XactEvent event, void *arg);

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
 *		Would an index be so much smaller if it were built anew that it's worth it?
 *
 * How large a btree would be is known rather well, GIN, GiST and hash indexes
 * roughly; other kinds are left as they are.  The table has just been vacuumed, so
 * all entries lead to rows.
 */
static bool
is_bloated(Relation index)
{
	BlockNumber pages = RelationGetNumberOfBlocks(index);
	BloatEstimate vacuumed = {0};
	BloatEstimate estimate = {0};
	pg_prng_state prng = pg_global_prng_state;

	if (pages <= SMALL_INDEX_PAGES)
		return false;
	if (index_bloat_is_known(index->rd_rel->relam))
		return pages * (1 - ROUGHLY_BLOATED_FRACTION) >
			index_rebuilt_pages(index, SAMPLE_PAGES, &prng);
	if (index->rd_rel->relam != BTREE_AM_OID)
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
	Rebuild		rebuild;
	MemoryContext old;
	ReindexStmt *stmt;

	StartTransactionCommand();
	if (!rebuild_begin(&rebuild, index))
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

	/*
	 * indexes are renamed without a lock on the table, but not with one on
	 * them
	 */
	if (RangeVarGetRelid(stmt->relation, ShareUpdateExclusiveLock, true) != index)
	{
		CommitTransactionCommand();
		return;
	}

	RegisterXactCallback(end_snapshots_on_standbys, &rebuild);
	PG_TRY();
	{
		/* it commits this transaction, and returns in another one */
		PushActiveSnapshot(GetTransactionSnapshot());
		ExecReindex(make_parsestate(NULL), stmt, true);
		if (ActiveSnapshotSet())
			PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_FINALLY();
	{
		UnregisterXactCallback(end_snapshots_on_standbys, &rebuild);
	}
	PG_END_TRY();
}

/*
 * rebuild_begin
 *		Note what will have to be known of an index; return false if it's gone, or
 *		no more valid.
 */
static bool
rebuild_begin(Rebuild *rebuild, Oid index)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(index));
	Form_pg_class form;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_class) GETSTRUCT(tuple);
	rebuild->index = index;
	rebuild->is_logged = form->relpersistence == RELPERSISTENCE_PERMANENT;
	rebuild->locator.spcOid = OidIsValid(form->reltablespace) ? form->reltablespace : MyDatabaseTableSpace;
	rebuild->locator.dbOid = MyDatabaseId;
	rebuild->locator.relNumber = form->relfilenode;
	rebuild->is_replaced = false;
	ReleaseSysCache(tuple);
	return get_index_isvalid(index);
}

/*
 * end_snapshots_on_standbys
 *		As the transaction that has the new index take the old one's place is about
 *		to commit: have standbys end snapshots that may need what it lacks.
 *
 * What it lacks had been deleted by transactions with older XIDs.  A
 * standby deals with queries of this database that have a snapshot in which one
 * of these may be running: as max_standby_streaming_delay has it.  New snapshots
 * are none of these, as the deletions come before this in the WAL.  The record is
 * the one by which a btree says that nobody needs a deleted page, and has no
 * other effect.
 */
static void
end_snapshots_on_standbys(XactEvent event, void *arg)
{
	Rebuild    *rebuild = arg;
	xl_btree_reuse_page record = {0};

	if (event != XACT_EVENT_PRE_COMMIT || rebuild->is_replaced || get_index_isvalid(rebuild->index))
		return;
	rebuild->is_replaced = true;
	if (!rebuild->is_logged || !XLogStandbyInfoActive())
		return;

	record.locator = rebuild->locator;
	record.block = InvalidBlockNumber;
	record.snapshotConflictHorizon = GetTopFullTransactionId();
	FullTransactionIdRetreat(&record.snapshotConflictHorizon);
	record.isCatalogRel = false;	/* what logical decoding reads isn't
									 * compacted */
	XLogBeginInsert();
	XLogRegisterData((char *) &record, SizeOfBtreeReusePage);
	XLogInsert(RM_BTREE_ID, XLOG_BTREE_REUSE_PAGE);
}
