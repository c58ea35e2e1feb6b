/*-------------------------------------------------------------------------
 *
 * index_copy.c
 *	  A copy of an index, in the catalogs, that takes its place.
 *
 * It is no constraint, not unique when others begin to maintain it, never valid, and
 * depends on the index and nothing else.  README.md says why, and how it takes the index's
 * place.
 *
 * Btrees of plain keys are built by our own sort (concurrent_build.c), all else by the
 * server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/nbtxlog.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_index.h"
#include "commands/defrem.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "autovacuum/autovacuum.h"
#include "autovacuum/table_log.h"
#include "compat.h"
#include "debug_point.h"
#include "audit/audit.h"
#include "index_build/concurrent_build.h"
#include "inplace/index_copy.h"
#include "others.h"
#include "rewrite/swap.h"
#include "transaction.h"

/* What the name of each copy has; if it is valid and has another one, it is somebody's own */
#define COPY_LABEL	"cyclone"

static int64 build_ourselves(const IndexCopy *copy, bool *is_built);
static int64 audit_copy(Relation rel, Relation index, const TableKey *key);
static void drop_buffers(Oid copy);
static void make_plain(Oid copy);
static bool is_as_noted(const IndexCopy *copy);
static bool is_copy(Oid index);
static bool is_dead(Oid copy);
static bool is_valid(Oid copy);
static bool is_needed(Form_pg_index form);

/* index_copy_create -- see index_copy.h. */
bool
index_copy_create(IndexCopy *copy, Relation rel, Oid index)
{
	SavedUser	saved;
	Relation	original;
	ObjectAddress of,
				on;
	char	   *name;

	Assert(ActiveSnapshotSet());
	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	Assert(OidIsValid(index));

	/*
	 * Sessions that rename or move an index have no lock on the table; one that
	 * commits lets go of the table's lock a moment before the index's.
	 */
	if (!others_lock_soon(index, ShareUpdateExclusiveLock))
		return false;
	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(index)) || !get_index_isvalid(index))
		return false;

	original = index_open(index, NoLock);
	copy->table = RelationGetRelid(rel);
	copy->index = index;
	copy->index_file = original->rd_rel->relfilenode;
	name = ChooseRelationName(RelationGetRelationName(original), NULL, COPY_LABEL,
							  RelationGetNamespace(original), false);

	become_owner(rel, &saved);
	copy->copy = compat_index_create_copy(rel, index, original->rd_rel->reltablespace, name);
	become_user_again(&saved);
	index_close(original, NoLock);

	(void) deleteDependencyRecordsForClass(RelationRelationId, copy->copy, RelationRelationId,
										   DEPENDENCY_AUTO);
	ObjectAddressSet(of, RelationRelationId, copy->copy);
	ObjectAddressSet(on, RelationRelationId, index);
	recordDependencyOn(&of, &on, DEPENDENCY_AUTO);
	CommandCounterIncrement();
	return true;
}

/* index_copy_build -- see index_copy.h. */
int64
index_copy_build(const IndexCopy *copy)
{
	bool		is_built;
	int64		audited_pages;

	Assert(ActiveSnapshotSet());
	Assert(OidIsValid(copy->table) && OidIsValid(copy->copy));
	Assert(CheckRelationOidLockedByMe(copy->table, ShareUpdateExclusiveLock, true));

	audited_pages = build_ourselves(copy, &is_built);
	if (!is_built)
	{
		index_concurrently_build(copy->table, copy->copy);
		drop_buffers(copy->copy);
	}
	CommandCounterIncrement();
	make_plain(copy->copy);
	return audited_pages;
}

/* index_copy_validate -- see index_copy.h. */
void
index_copy_validate(const IndexCopy *copy)
{
	Assert(ActiveSnapshotSet());
	Assert(OidIsValid(copy->table) && OidIsValid(copy->copy));
	Assert(CheckRelationOidLockedByMe(copy->table, ShareUpdateExclusiveLock, true));

	validate_index(copy->table, copy->copy, GetActiveSnapshot());
}

/*
 * build_ourselves
 *		Build the copy as index_concurrently_build does, if we can.  Returns how many of its
 *		pages were audited.
 */
static int64
build_ourselves(const IndexCopy *copy, bool *is_built)
{
	Relation	rel = table_open(copy->table, ShareUpdateExclusiveLock);
	TableKey	key = table_log_key(rel);
	int64		audited_pages = 0;
	SavedUser	saved;
	Relation	index;
	IndexInfo  *info;

	/* what is constant in an expression is computed as soon as we look at it */
	become_owner(rel, &saved);
	index = index_open(copy->copy, RowExclusiveLock);
	info = BuildIndexInfo(index);
	Assert(!info->ii_ReadyForInserts);
	*is_built = !table_log_audit_has_failed(&key) && concurrent_build_is_possible(index, info);
	if (*is_built)
	{
		info->ii_Concurrent = true;
		concurrent_build(rel, index, info);
		audited_pages = audit_copy(rel, index, &key);
	}
	become_user_again(&saved);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	if (*is_built)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		index_set_state_flags(copy->copy, INDEX_CREATE_SET_READY);
	}
	return audited_pages;
}

/*
 * drop_buffers
 *		Drop pages of a copy from shared buffers that the server has built, before others
 *		maintain it.
 *
 * The server writes pages of btrees and sorted GiST indexes past shared buffers, and
 * those in front last.  Somebody may have read them before, as zeroes.
 */
static void
drop_buffers(Oid copy)
{
	Relation	index = index_open(copy, AccessShareLock);
	ForkNumber	fork = MAIN_FORKNUM;
	BlockNumber first = 0;

	Assert(!index->rd_index->indisvalid);
	if (!RelationUsesLocalBuffers(index))
	{
		/* those of other kinds are there alone */
		FlushRelationBuffers(index);
		DropRelationBuffers(RelationGetSmgr(index), &fork, 1, &first);
	}
	index_close(index, AccessShareLock);
}

/* audit_copy -- judge a sample of its pages; if that fails, leave the table to the server. */
static int64
audit_copy(Relation rel, Relation index, const TableKey *key)
{
	volatile int64 audited_pages = 0;

	PG_TRY();
	{
		audited_pages = audit_new_btree(index, rel, false, "VACUUM (FULL INPLACE)");
	}
	PG_CATCH();
	{
		(void) autovacuum_audit_has_failed(key, RelationGetRelationName(rel));
		PG_RE_THROW();
	}
	PG_END_TRY();
	return audited_pages;
}

/*
 * index_copy_end_snapshots_on_standbys -- see index_copy.h.
 *
 * The copy lacks rows that transactions with older XIDs had deleted, which had ended
 * when it was validated.  A standby deals with queries of this database that have a
 * snapshot in which one of these may be running: as max_standby_streaming_delay has
 * it.  Those that have begun since, and new ones, have none, unless an older transaction
 * is still running: a standby goes by a snapshot's oldest XID.  The xmin of the snapshot by
 * which the copy was validated would spare some of these, and would be wrong: a transaction
 * that waits for a synchronous standby is running here, and has ended there.  The
 * record is the one by which a btree says that nobody needs a deleted page, and
 * has no other effect.
 *
 * Not under the exclusive lock: a standby would hold it while it waits for those
 * queries, and they would wait for the lock.
 */
void
index_copy_end_snapshots_on_standbys(const IndexCopy *copy, TransactionId unseen_xid)
{
	xl_btree_reuse_page record = {0};
	Relation	index = index_open(copy->copy, AccessShareLock);

	Assert(IsTransactionState());
	Assert(CheckRelationOidLockedByMe(copy->table, ShareUpdateExclusiveLock, true));
	Assert(TransactionIdIsNormal(unseen_xid));
	if (RelationNeedsWAL(index) && XLogStandbyInfoActive())
	{
		FullTransactionId next = ReadNextFullTransactionId();

		record.locator = index->rd_locator;
		record.block = InvalidBlockNumber;
		record.snapshotConflictHorizon =
			FullTransactionIdFromU64(U64FromFullTransactionId(next) - (XidFromFullTransactionId(next) - unseen_xid));
		FullTransactionIdRetreat(&record.snapshotConflictHorizon);
		record.isCatalogRel = false;	/* what logical decoding reads isn't
										 * compacted */
		XLogBeginInsert();
		XLogRegisterData((char *) &record, SizeOfBtreeReusePage);
		XLogInsert(RM_BTREE_ID, XLOG_BTREE_REUSE_PAGE);
	}
	index_close(index, AccessShareLock);
}

/* index_copy_swap -- see index_copy.h. */
bool
index_copy_swap(const IndexCopy *copy)
{
	ObjectAddress old;
	Relation	index;

	Assert(ActiveSnapshotSet());
	Assert(CheckRelationOidLockedByMe(copy->table, AccessExclusiveLock, false));

	if (!ConditionalLockRelationOid(copy->index, AccessExclusiveLock) ||
		!ConditionalLockRelationOid(copy->copy, AccessExclusiveLock) ||
		!is_as_noted(copy))
		return false;

	/*
	 * what serializable transactions have read is known by pages of the old
	 * file
	 */
	index = index_open(copy->index, NoLock);
	TransferPredicateLocksToHeapRelation(index);
	index_close(index, NoLock);

	swap_files(copy->index, copy->copy, InvalidTransactionId, InvalidMultiXactId);
	ObjectAddressSet(old, RelationRelationId, copy->copy);
	performDeletion(&old, DROP_RESTRICT, PERFORM_DELETION_INTERNAL);
	return true;
}

/* index_copies_of -- see index_copy.h. */
List *
index_copies_of(Oid table)
{
	List	   *copies = NIL;
	Relation	pg_index = table_open(IndexRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	Assert(IsTransactionState());

	ScanKeyInit(&key, Anum_pg_index_indrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(table));
	scan = systable_beginscan(pg_index, IndexIndrelidIndexId, true, NULL,
							  OidIsValid(table) ? 1 : 0, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_index form = (Form_pg_index) GETSTRUCT(tuple);

		if (!is_needed(form) && is_copy(form->indexrelid))
			copies = lappend_oid(copies, form->indexrelid);
	}
	systable_endscan(scan);
	table_close(pg_index, AccessShareLock);
	return copies;
}

/* index_copy_retire -- see index_copy.h. */
bool
index_copy_retire(Oid table, Oid copy)
{
	bool		is_locked;

	Assert(!IsTransactionState());
	transaction_begin(true);
	is_locked = others_lock_soon(table, ShareUpdateExclusiveLock);
	if (is_locked && list_member_oid(index_copies_of(table), copy) &&
		!is_valid(copy) && !is_dead(copy))
		index_concurrently_set_dead(table, copy);
	transaction_end();
	return is_locked;
}

/* index_copy_wait_for_users -- see index_copy.h. */
OthersEnd
index_copy_wait_for_users(Oid table, int patience_ms)
{
	MemoryContext context = CurrentMemoryContext;
	MemoryContext old;
	Others	   *others;
	OthersEnd	end;

	Assert(!IsTransactionState());
	transaction_begin(false);
	DEBUG_POINT("shrink-drop");
	old = MemoryContextSwitchTo(context);
	others = others_with_lock(table, AccessExclusiveLock);
	MemoryContextSwitchTo(old);
	transaction_end();
	end = others_wait(others, patience_ms).end;
	pfree(others->vxids);
	pfree(others);
	return end;
}

/* is_dead -- has no session to maintain it?  True, too, if it is gone. */
static bool
is_dead(Oid copy)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(copy));
	bool		is_live;

	if (!HeapTupleIsValid(tuple))
		return true;
	is_live = ((Form_pg_index) GETSTRUCT(tuple))->indislive;
	ReleaseSysCache(tuple);
	return !is_live;
}

/* index_copy_drop -- see index_copy.h. */
bool
index_copy_drop(Oid table, Oid copy, char **dropped)
{
	bool		was_valid = is_valid(copy);
	ObjectAddress address;

	Assert(ActiveSnapshotSet());

	*dropped = NULL;
	DEBUG_POINT("copy-drop");
	if (!others_lock_soon(table, was_valid ? AccessExclusiveLock : ShareUpdateExclusiveLock))
		return false;
	/* it may be gone, or be somebody's own by now */
	if (!list_member_oid(index_copies_of(table), copy))
		return true;
	if (!was_valid && !is_dead(copy))
		return false;
	*dropped = get_rel_name(copy);
	ObjectAddressSet(address, RelationRelationId, copy);
	performDeletion(&address, DROP_RESTRICT,
					PERFORM_DELETION_CONCURRENT_LOCK | PERFORM_DELETION_INTERNAL);
	return true;
}

/* index_copy_drop_for_waiter -- see index_copy.h. */
bool
index_copy_drop_for_waiter(Oid table, Oid copy)
{
	LOCKTAG		tag;
	char	   *dropped;

	Assert(ActiveSnapshotSet());
	Assert(CheckRelationOidLockedByMe(table, ShareUpdateExclusiveLock, true));

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
	return LockHasWaiters(&tag, ShareUpdateExclusiveLock, true) &&
		others_with_lock(table, AccessExclusiveLock)->count == 0 &&
		!is_valid(copy) && index_copy_drop(table, copy, &dropped);
}

/* is_valid -- is it valid, as what builds all of a table's indexes anew makes it? */
static bool
is_valid(Oid copy)
{
	Assert(IsTransactionState());

	return SearchSysCacheExists1(INDEXRELID, ObjectIdGetDatum(copy)) && get_index_isvalid(copy);
}

/* make_plain -- a copy is not unique any more, before others see that it is maintained. */
static void
make_plain(Oid copy)
{
	Relation	pg_index = table_open(IndexRelationId, RowExclusiveLock);
	HeapTuple	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(copy));
	Form_pg_index form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", copy);
	form = (Form_pg_index) GETSTRUCT(tuple);
	Assert(!form->indisvalid && !form->indisprimary && !form->indisexclusion);
	form->indisunique = false;
	form->indnullsnotdistinct = false;
	form->indimmediate = true;
	CatalogTupleUpdate(pg_index, &tuple->t_self, tuple);
	heap_freetuple(tuple);
	table_close(pg_index, RowExclusiveLock);
}

/* is_as_noted -- is the index as it was when the copy was made, and is the copy whole? */
static bool
is_as_noted(const IndexCopy *copy)
{
	HeapTuple	class_tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(copy->index));
	HeapTuple	index_tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(copy->copy));
	bool		is_so = false;

	if (HeapTupleIsValid(class_tuple) && HeapTupleIsValid(index_tuple))
	{
		Form_pg_index form = (Form_pg_index) GETSTRUCT(index_tuple);

		is_so = ((Form_pg_class) GETSTRUCT(class_tuple))->relfilenode == copy->index_file &&
			get_index_isvalid(copy->index) &&
			form->indisready && form->indislive && !form->indisunique;
	}
	if (HeapTupleIsValid(class_tuple))
		ReleaseSysCache(class_tuple);
	if (HeapTupleIsValid(index_tuple))
		ReleaseSysCache(index_tuple);
	return is_so;
}

/* is_copy -- does an index depend on another one? */
static bool
is_copy(Oid index)
{
	Relation	pg_depend = table_open(DependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		is_so = false;

	ScanKeyInit(&keys[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(index));
	scan = systable_beginscan(pg_depend, DependDependerIndexId, true, NULL, 2, keys);
	while (!is_so && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		is_so = form->deptype == DEPENDENCY_AUTO &&
			form->refclassid == RelationRelationId && form->refobjsubid == 0 &&
			get_rel_relkind(form->refobjid) == RELKIND_INDEX;
	}
	systable_endscan(scan);
	table_close(pg_depend, AccessShareLock);
	return is_so;
}

/*
 * is_needed
 *		Is a valid index none of ours, by its name, or does something hang on it?  A copy
 *		that has become valid was perhaps left while it was unique.
 *
 * Each VACUUM asks this of each index, so the name comes first.
 */
static bool
is_needed(Form_pg_index form)
{
	char	   *name = form->indisvalid ? get_rel_name(form->indexrelid) : NULL;

	return name != NULL &&
		(strstr(name, COPY_LABEL) == NULL || form->indisreplident ||
		 get_rel_relispartition(form->indexrelid) ||
		 get_index_ref_constraints(form->indexrelid) != NIL);
}
