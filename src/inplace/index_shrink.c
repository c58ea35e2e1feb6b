/*-------------------------------------------------------------------------
 *
 * index_shrink.c
 *	  Making a table's bloated indexes small again, while others use them.
 *
 * One index at a time: an empty copy of it, which is built, gets what transactions write
 * that don't know it, and takes the index's place when nobody needs what it lacks.  README.md
 * has the steps, whom they wait for, and what becomes of the copy if they don't end.
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
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_namespace.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/backend_progress.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "bloat/bloat.h"
#include "compat.h"
#include "debug_point.h"
#include "engine/lock_queue.h"
#include "guards/guards.h"
#include "inplace/cleaner.h"
#include "inplace/index_copy.h"
#include "inplace/inplace.h"
#include "inplace/inplace_report.h"
#include "inplace/table_inplace.h"
#include "others.h"
#include "relation_size.h"
#include "report/progress.h"
#include "rewrite/disk_space.h"
#include "settings.h"
#include "transaction.h"

/* Smaller indexes aren't worth the trouble, nor is less of a gain. */
#define SMALL_INDEX_PAGES	16
#define BLOATED_FRACTION	0.04

/* How many pages to look at for that */
#define SAMPLE_PAGES		1000

/* How long to wait for others after an error */
#define PATIENCE_MS			1000

/* An index that is to be built anew */
typedef struct Bloated
{
	Oid			index;
	BlockNumber pages;			/* that it would have then */
	bool		is_over;		/* it has been, or can't be */
} Bloated;

/* The work on a table's indexes */
typedef struct Shrink
{
	Oid			table;
	bool		may_queue;		/* without SKIP_LOCKED: for the table's lock */
	bool		is_last_try;	/* if others are in the way, say so */
	OthersFound in_the_way;		/* of the index in hand, before */
	bool		has_left_copy;	/* that could not be dropped */
	MemoryContext context;		/* for what outlives transactions */
	Oid			index;			/* the one in hand */
	IndexCopy	copy;			/* of it, if it's valid */
	TransactionId unseen_xid;	/* what such and later XIDs have deleted is in
								 * the copy */
	int64		audited_pages;	/* of copies */
	ErrorData  *error;			/* the first one; NULL if there was none */
} Shrink;

static void remove_leftovers(Shrink *shrink);
static List *bloated_indexes(Oid relid, MemoryContext context);
static bool is_bloated(Relation index, BlockNumber *pages);
static bool rebuild_all(Shrink *shrink, List *bloated_list);
static bool may_begin(Shrink *shrink, Bloated *bloated, bool *is_temporary);
static bool rebuild_safely(Shrink *shrink, Bloated *bloated);
static bool is_about_one_index(int sqlerrcode);
static bool rebuild_index(Shrink *shrink, Bloated *bloated);
static void rebuild_temporary(Oid index);
static bool create_copy(Shrink *shrink);
static void build_copy(Shrink *shrink);
static TransactionId validate_copy(Shrink *shrink);
static bool wait_for_others(Shrink *shrink, TransactionId limit_xmin);
static bool swap_copy_in(Shrink *shrink);
static bool try_to_swap(Shrink *shrink, bool may_queue, OthersFound *others, bool *is_done);
static bool swap_from_queue(Shrink *shrink, bool *is_done);
static void begin_swap(Shrink *shrink);
static bool swap_locked(Shrink *shrink);
static bool remove_copy(Shrink *shrink, Oid copy);
static bool drop_dead(Shrink *shrink, Oid copy, OthersEnd users);
static void take_lock_back(Oid table, int patience_ms, bool may_queue);
static bool lock_again(Oid table, bool may_queue);
static void put_off(Shrink *shrink, const OthersFound *others);

/*
 * index_shrink
 *		Build a table's bloated indexes anew.
 *
 * Called and returns outside any transaction, with the table locked for the
 * session.  Memory that must outlive transactions is in context.  Returns how many pages of
 * new indexes were audited.
 */
int64
index_shrink(Oid relid, bool may_queue, MemoryContext context)
{
	Shrink	   *shrink = MemoryContextAllocZero(context, sizeof(Shrink));
	List	   *bloated;

	Assert(!IsTransactionState());
	Assert(CheckRelationOidLockedByMe(relid, ShareUpdateExclusiveLock, true));
	shrink->table = relid;
	shrink->may_queue = may_queue;
	shrink->context = context;
	remove_leftovers(shrink);
	bloated = bloated_indexes(relid, context);
	/* those who were in the way may have ended meanwhile */
	if (!rebuild_all(shrink, bloated) && !shrink->has_left_copy)
	{
		shrink->is_last_try = true;
		(void) rebuild_all(shrink, bloated);
	}
	if (shrink->error != NULL)
	{
		/* outside of any it would not end the session's lock */
		transaction_begin(false);
		ReThrowError(shrink->error);
	}
	return shrink->audited_pages;
}

/*
 * rebuild_all
 *		Build those indexes anew for which that isn't over; return whether it is for all.
 */
static bool
rebuild_all(Shrink *shrink, List *bloated_list)
{
	bool		all_are_over = true;
	bool		goes_on = true;

	foreach_ptr(Bloated, bloated, bloated_list)
	{
		bool		is_temporary;

		shrink->index = bloated->index;
		shrink->copy.copy = InvalidOid;
		if (goes_on && !bloated->is_over && may_begin(shrink, bloated, &is_temporary))
		{
			bloated->is_over = is_temporary;
			if (is_temporary)
				rebuild_temporary(bloated->index);
			else
				goes_on = rebuild_safely(shrink, bloated);
		}
		all_are_over &= bloated->is_over;
	}
	return all_are_over;
}

/*
 * remove_leftovers
 *		Drop copies that an earlier attempt has left, as its session or the server
 *		has died.
 */
static void
remove_leftovers(Shrink *shrink)
{
	List	   *copies;
	MemoryContext old;

	Assert(!IsTransactionState());
	transaction_begin(false);
	old = MemoryContextSwitchTo(shrink->context);
	copies = index_copies_of(shrink->table);
	MemoryContextSwitchTo(old);
	transaction_end();
	foreach_oid(copy, copies)
		(void) remove_copy(shrink, copy);
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

	Assert(!IsTransactionState());
	transaction_begin(false);
	rel = table_open(relid, ShareUpdateExclusiveLock);
	foreach_oid(oid, RelationGetIndexList(rel))
	{
		Relation	index = index_open(oid, AccessShareLock);
		Form_pg_index form = index->rd_index;
		BlockNumber pages;

		if (!form->indisvalid || !form->indisready || !is_bloated(index, &pages))
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
			Bloated    *entry = palloc_object(Bloated);

			*entry = (Bloated)
			{
				.index = oid,.pages = pages
			};
			bloated = lappend(bloated, entry);
			MemoryContextSwitchTo(old);
		}
		index_close(index, AccessShareLock);
	}

	/* REINDEX will check it: not every role that may VACUUM may do that */
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
	transaction_end();
	return bloated;
}

/*
 * is_bloated
 *		Would an index be so much smaller if it were built anew that it's worth it?
 *		*pages is how large it would be.
 *
 * How large a btree would be is known rather well, GIN, GiST and hash indexes
 * roughly; other kinds are left as they are, and so are damaged ones.  The table
 * has just been vacuumed, so all entries lead to rows.
 */
static bool
is_bloated(Relation index, BlockNumber *pages)
{
	return index_shrink_is_worthwhile(index, 0) &&
		bloat_rebuilt_pages(index, SAMPLE_PAGES, pages) &&
		index_shrink_is_worthwhile(index, *pages);
}

/* index_shrink_is_worthwhile -- see table_inplace.h. */
bool
index_shrink_is_worthwhile(Relation index, BlockNumber pages)
{
	BlockNumber now = relation_blocks(index);
	bool		is_btree = index->rd_rel->relam == BTREE_AM_OID;

	Assert(CheckRelationLockedByMe(index, AccessShareLock, true));

	return now > SMALL_INDEX_PAGES &&
		(is_btree || index_bloat_is_known(index->rd_rel->relam)) &&
		now * (1 - (is_btree ? BLOATED_FRACTION : ROUGHLY_BLOATED_FRACTION)) > pages;
}

/*
 * may_begin
 *		Is there room for another such index, and no transaction that would make us
 *		give up in the end?  If not, there is a warning.  *is_temporary says whether
 *		the table is temporary.
 *
 * A transaction of which it isn't known for how long it has been running is waited for,
 * once.
 */
static bool
may_begin(Shrink *shrink, Bloated *bloated, bool *is_temporary)
{
	OthersFound others = {.end = OTHERS_GONE};
	Relation	index;
	bool		may = false;

	Assert(!IsTransactionState());
	transaction_begin(false);
	guards_point();
	index = try_relation_open(bloated->index, AccessShareLock);
	bloated->is_over = index == NULL || !disk_space_suffices(index, bloated->pages);
	if (!bloated->is_over)
	{
		*is_temporary = RelationUsesLocalBuffers(index);
		if (!*is_temporary)
		{
			others = others_for_longer_than(others_with_lock(shrink->table, ShareLock),
											cyclone_index_wait, shrink->is_last_try);
			if (others.end == OTHERS_GONE)
				others = others_for_longer_than(others_with_snapshot(InvalidTransactionId),
												cyclone_index_wait, shrink->is_last_try);
		}
		may = others.end == OTHERS_GONE;
		if (!may)
			put_off(shrink, &others);
	}
	if (index != NULL)
		relation_close(index, AccessShareLock);
	transaction_end();
	return may;
}

/*
 * rebuild_safely
 *		Build an index anew; whatever happens, leave no copy of it behind.  Returns
 *		false if the rest of the table's indexes are to be left as they are.
 *
 * An error that is about this index alone is kept for the end.
 */
static bool
rebuild_safely(Shrink *shrink, Bloated *bloated)
{
	volatile bool goes_on = false;
	MemoryContext old = CurrentMemoryContext;

	Assert(!IsTransactionState() && !OidIsValid(shrink->copy.copy));
	PG_TRY();
	{
		goes_on = rebuild_index(shrink, bloated);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(shrink->context);
		error = CopyErrorData();
		FlushErrorState();

		/* which gives back the session's lock, too */
		AbortOutOfAnyTransaction();
		progress_clear();
		if (OidIsValid(shrink->copy.copy))
		{
			(void) index_copy_retire(shrink->table, shrink->copy.copy);
			(void) drop_dead(shrink, shrink->copy.copy,
							 index_copy_wait_for_users(shrink->table, PATIENCE_MS));
			cleaner_forget();
		}
		if (!is_about_one_index(error->sqlerrcode) || !lock_again(shrink->table, false))
			ReThrowError(error);
		if (shrink->error == NULL)
			shrink->error = error;
		bloated->is_over = true;
		goes_on = true;
		MemoryContextSwitchTo(old);
	}
	PG_END_TRY();
	return goes_on;
}

/*
 * is_about_one_index
 *		May other indexes be built anew after such an error?  Not if we are told
 *		to end, or something is lacking that they need, too.
 */
static bool
is_about_one_index(int sqlerrcode)
{
	switch (ERRCODE_TO_CATEGORY(sqlerrcode))
	{
		case ERRCODE_TO_CATEGORY(ERRCODE_INSUFFICIENT_RESOURCES):
		case ERRCODE_TO_CATEGORY(ERRCODE_OPERATOR_INTERVENTION):
		case ERRCODE_TO_CATEGORY(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE):
		case ERRCODE_TO_CATEGORY(ERRCODE_TRANSACTION_ROLLBACK):
			return false;
		default:
			return true;
	}
}

/*
 * rebuild_index
 *		The steps.  Returns false if others are in the way of all indexes.
 */
static bool
rebuild_index(Shrink *shrink, Bloated *bloated)
{
	TransactionId limit_xmin;
	bool		others_are_gone;
	bool		is_swapped = false;

	if (!create_copy(shrink))
	{
		bloated->is_over = shrink->is_last_try;
		return true;
	}
	build_copy(shrink);
	others_are_gone = wait_for_others(shrink, InvalidTransactionId);
	if (others_are_gone)
	{
		limit_xmin = validate_copy(shrink);

		/*
		 * twice, as a transaction that came later may import a snapshot of
		 * one
		 */
		others_are_gone = wait_for_others(shrink, limit_xmin) &&
			wait_for_others(shrink, limit_xmin);
	}
	if (others_are_gone)
		is_swapped = swap_copy_in(shrink);
	bloated->is_over = is_swapped;
	if (!is_swapped && !remove_copy(shrink, shrink->copy.copy) && !shrink->is_last_try)
	{
		/* so would others be */
		shrink->has_left_copy = bloated->is_over = true;
		inplace_report_index_stays(shrink->index, &shrink->in_the_way);
	}
	cleaner_forget();

	transaction_begin(false);
	progress_clear();
	pgstat_progress_end_command();
	transaction_end();
	return is_swapped;
}

/* rebuild_temporary -- nobody else can be in the way. */
static void
rebuild_temporary(Oid index)
{
	ReindexParams params = {0};

	transaction_begin(true);
	reindex_index(NULL, index, false, RELPERSISTENCE_TEMP, &params);
	transaction_end();
}

/* create_copy -- step 1; false if the index is gone, or locked by others. */
static bool
create_copy(Shrink *shrink)
{
	Relation	rel;
	bool		is_made;

	Assert(!IsTransactionState());
	transaction_begin(true);
	DEBUG_POINT("shrink-create");
	rel = table_open(shrink->table, ShareUpdateExclusiveLock);
	is_made = index_copy_create(&shrink->copy, rel, shrink->index);
	if (is_made)
		cleaner_watch(shrink->copy.copy);
	if (!is_made && shrink->is_last_try && get_rel_name(shrink->index) != NULL)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("index \"%s\" stays bloated, as other sessions have it locked",
						get_rel_name(shrink->index))));
	table_close(rel, NoLock);
	transaction_end();
	return is_made;
}

/* build_copy -- step 2: fill the copy, and have all maintain it from now on. */
static void
build_copy(Shrink *shrink)
{
	Assert(OidIsValid(shrink->copy.copy));
	transaction_begin(true);
	DEBUG_POINT("shrink-build");
	pgstat_progress_start_command(PROGRESS_COMMAND_CREATE_INDEX, shrink->table);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_COMMAND,
								 PROGRESS_CREATEIDX_COMMAND_REINDEX_CONCURRENTLY);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_INDEX_OID, shrink->index);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_PHASE, PROGRESS_CREATEIDX_PHASE_BUILD);
	progress_begin(shrink->table, MyProcPid);
	progress_phase(PROGRESS_INPLACE_REINDEX, 0);
	progress_index(shrink->index, 0);
	shrink->audited_pages += index_copy_build(&shrink->copy);
	DEBUG_POINT("shrink-built");
	transaction_end();
}

/*
 * validate_copy
 *		Step 3: add the rows of transactions that didn't maintain it.
 *
 * Returns the xmin of the snapshot by which that was done: the copy may lack
 * entries of row versions that this snapshot doesn't see.
 */
static TransactionId
validate_copy(Shrink *shrink)
{
	TransactionId xmin;

	Assert(OidIsValid(shrink->copy.copy));
	transaction_begin(true);
	DEBUG_POINT("shrink-validate");
	progress_phase(PROGRESS_INPLACE_REINDEX, 0);
	progress_index(shrink->index, 0);
	index_copy_validate(&shrink->copy);
	xmin = GetActiveSnapshot()->xmin;
	shrink->unseen_xid = GetActiveSnapshot()->xmax;
	transaction_end();
	return xmin;
}

/*
 * wait_for_others
 *		Wait for transactions that may write to the table without knowing of the
 *		copy; or, given an xmin, for those that may need what it lacks (step 4).
 *		False, with a warning, if they don't end.
 */
static bool
wait_for_others(Shrink *shrink, TransactionId limit_xmin)
{
	bool		for_snapshots = TransactionIdIsValid(limit_xmin);
	OthersFound found;
	Others	   *others;
	MemoryContext old;

	Assert(!IsTransactionState());
	transaction_begin(false);
	if (!for_snapshots)
		DEBUG_POINT("shrink-wait");
	pgstat_progress_update_param(PROGRESS_CREATEIDX_PHASE,
								 for_snapshots ? PROGRESS_CREATEIDX_PHASE_WAIT_3 :
								 PROGRESS_CREATEIDX_PHASE_WAIT_2);
	progress_phase(PROGRESS_INPLACE_WAIT, 0);
	progress_index(shrink->index, 0);
	old = MemoryContextSwitchTo(shrink->context);
	others = for_snapshots ? others_with_snapshot(limit_xmin) :
		others_with_lock(shrink->table, ShareLock);
	MemoryContextSwitchTo(old);
	transaction_end();

	found = others_wait(others, cyclone_index_wait);
	if (found.end != OTHERS_GONE)
		put_off(shrink, &found);
	return found.end == OTHERS_GONE;
}

/*
 * swap_copy_in
 *		Step 5; false, with a warning, if it doesn't get the lock.
 *
 * Standing in the lock's queue holds others up, so after each time in vain we stand
 * there again only after twice as many tries.
 */
static bool
swap_copy_in(Shrink *shrink)
{
	TimestampTz start = GetCurrentTimestamp();
	OthersFound others;
	bool		is_done = false;

	Assert(!IsTransactionState());
	transaction_begin(true);
	index_copy_end_snapshots_on_standbys(&shrink->copy, shrink->unseen_xid);
	transaction_end();

	for (int tries = 1; !try_to_swap(shrink, (tries & (tries - 1)) == 0, &others, &is_done); tries++)
	{
		if (others.end == OTHERS_WAIT_FOR_US ||
			TimestampDifferenceExceeds(start, GetCurrentTimestamp(), cyclone_index_wait))
		{
			put_off(shrink, &others);
			return false;
		}
	}
	return is_done;
}

/*
 * try_to_swap
 *		Try for a moment to lock the table exclusively, and do it then; return whether
 *		that is over.  *others says who is in the way, *is_done whether the copy
 *		has taken the index's place.
 */
static bool
try_to_swap(Shrink *shrink, bool may_queue, OthersFound *others, bool *is_done)
{
	bool		is_locked;

	Assert(!IsTransactionState());
	begin_swap(shrink);
	is_locked = others_lock_soon(shrink->table, AccessExclusiveLock);
	PushActiveSnapshot(GetTransactionSnapshot());
	if (is_locked)
		*is_done = swap_locked(shrink);
	else
	{
		*others = others_look(others_with_lock(shrink->table, AccessExclusiveLock));
		may_queue = may_queue && others->end != OTHERS_WAIT_FOR_US &&
			lock_queue_may_help(shrink->table);
	}
	transaction_end();
	return is_locked || (may_queue && swap_from_queue(shrink, is_done));
}

/*
 * swap_from_queue
 *		The same on a table that others use all the time: stand in the lock's queue.
 *
 * Meanwhile the table isn't locked by us.  If it were, and a session that we wait
 * for wanted a lock that ours forbids, the server would fail its statement.
 * index_copy_swap finds out whether the table was changed in that time.
 */
static bool
swap_from_queue(Shrink *shrink, bool *is_done)
{
	LockRelId	lock = {.relId = shrink->table,.dbId = MyDatabaseId};
	bool		is_locked;

	Assert(!IsTransactionState());
	UnlockRelationIdForSession(&lock, ShareUpdateExclusiveLock);
	begin_swap(shrink);
	DEBUG_POINT("shrink-queue");
	is_locked = lock_queue_for_a_moment(shrink->table);
	PushActiveSnapshot(GetTransactionSnapshot());
	if (is_locked)
	{
		*is_done = swap_locked(shrink);
		LockRelationIdForSession(&lock, ShareUpdateExclusiveLock);
	}
	transaction_end();
	if (!is_locked)
		take_lock_back(shrink->table, cyclone_index_wait, false);
	return is_locked;
}

/*
 * begin_swap
 *		Begin a transaction to lock the table in, without a snapshot until it is locked.
 *
 * Others wait for what happens under the lock: some catalog rows, and a commit.  It
 * goes to disk here at once, whatever the setting, but isn't waited for on standbys.
 */
static void
begin_swap(Shrink *shrink)
{
	transaction_begin(true);
	DEBUG_POINT("shrink-swap");
	(void) set_config_option("synchronous_commit", "local", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
	PopActiveSnapshot();
}

/* swap_locked -- let the copy take the index's place; false, with a warning, if it can't. */
static bool
swap_locked(Shrink *shrink)
{
	if (index_copy_swap(&shrink->copy))
	{
		DEBUG_POINT("shrink-swapped");
		return true;
	}
	ereport(shrink->is_last_try ? WARNING : DEBUG1,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("index %u of table %u stays as it is, as other sessions have changed or locked it meanwhile",
					shrink->index, shrink->table)));
	return false;
}

/*
 * remove_copy
 *		Drop a copy that isn't needed; false if it is left over.
 *
 * If a command waits for the table, and nobody may have the copy open, that is done before
 * we make way for it: REPACK (CONCURRENTLY) fails where an index is invalid.
 *
 * The table is locked for the session before and afterwards, but not while others
 * are waited for, who may want to lock it.  If an autovacuum or another command has it
 * afterwards, we wait for it as at the statement's begin: with nothing locked, with no copy
 * that others maintain, and without a snapshot for which they may wait.
 */
static bool
remove_copy(Shrink *shrink, Oid copy)
{
	LockRelId	lock = {.relId = shrink->table,.dbId = MyDatabaseId};
	OthersEnd	users;
	bool		is_dropped;

	Assert(OidIsValid(copy) && !IsTransactionState());
	(void) index_copy_retire(shrink->table, copy);
	transaction_begin(true);
	is_dropped = index_copy_drop_for_waiter(shrink->table, copy);
	transaction_end();
	if (is_dropped)
		return true;
	UnlockRelationIdForSession(&lock, ShareUpdateExclusiveLock);
	users = index_copy_wait_for_users(shrink->table, cyclone_index_wait);
	if (shrink->may_queue)
		take_lock_back(shrink->table, 0, true);
	is_dropped = drop_dead(shrink, copy, users);
	if (!shrink->may_queue)
		take_lock_back(shrink->table, 0, false);
	return is_dropped;
}

/*
 * drop_dead
 *		Drop a copy that nobody maintains, if nobody may have it open any more, or one that
 *		has become valid; if that can't be done, warn, leave it to a worker, and return false.
 *
 * Called and returns outside any transaction.
 */
static bool
drop_dead(Shrink *shrink, Oid copy, OthersEnd users)
{
	char	   *dropped;
	bool		is_left_over = false;

	Assert(!IsTransactionState());
	transaction_begin(true);
	if (users == OTHERS_GONE && index_copy_drop(shrink->table, copy, &dropped))
		 /* it is gone, or somebody's own */ ;
	else if (list_member_oid(index_copies_of(shrink->table), copy))
	{
		is_left_over = true;
		cleaner_leave();
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("index \"%s\", an unfinished copy, is left over", get_rel_name(copy)),
				 errdetail("It takes up disk space, but is not used."),
				 errhint("A background worker drops it when the transactions that have used the table have ended, if that is soon.  The next VACUUM (FULL INPLACE) of the table drops it, too, and so does DROP INDEX.")));
	}
	transaction_end();
	return !is_left_over;
}

/*
 * take_lock_back
 *		Lock a table for the session again, after it was left to others; an error if
 *		they have dropped it or, where we may not queue, keep it for longer than that.
 */
static void
take_lock_back(Oid table, int patience_ms, bool may_queue)
{
	TimestampTz start = GetCurrentTimestamp();

	while (!lock_again(table, may_queue))
	{
		bool		is_gone;

		transaction_begin(false);
		is_gone = get_rel_name(table) == NULL;
		transaction_end();
		if (is_gone || TimestampDifferenceExceeds(start, GetCurrentTimestamp(), patience_ms))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("VACUUM (FULL INPLACE) ends here, as other sessions have locked or dropped the table meanwhile"),
					 errdetail("It had made way for them.  The table has been compacted; some of its indexes may still be bloated.")));
	}
}

/* lock_again -- lock a table for the session, as before; false if others have it, or it is gone. */
static bool
lock_again(Oid table, bool may_queue)
{
	LockRelId	lock = {.relId = table,.dbId = MyDatabaseId};
	bool		is_locked;

	Assert(!IsTransactionState());
	transaction_begin(false);
	DEBUG_POINT("shrink-lock");
	if (may_queue)
		LockRelationOid(table, ShareUpdateExclusiveLock);
	is_locked = (may_queue || others_lock_soon(table, ShareUpdateExclusiveLock)) &&
		get_rel_name(table) != NULL;
	if (is_locked)
		LockRelationIdForSession(&lock, ShareUpdateExclusiveLock);
	transaction_end();
	return is_locked;
}

/* put_off -- others are in the way of the index in hand: say so, unless it is tried once more. */
static void
put_off(Shrink *shrink, const OthersFound *others)
{
	shrink->in_the_way = *others;
	if (shrink->is_last_try)
		inplace_report_index_stays(shrink->index, others);
}
