/*-------------------------------------------------------------------------
 *
 * update_chains.c
 *	  Copying those versions of rows that are linked with others.
 *
 * An old version of a row that a snapshot may still see points at the newer
 * one, so the place of the newer one must be known before the old one is
 * written, wherever in the table the two are.  There are few of them as a
 * rule: of rows that were updated since the oldest snapshot was taken.  So
 * the team only marks the blocks that have some, and the leader copies them
 * afterwards, when it is the only one who fills pages, and knows the place of
 * each tuple that it adds.
 *
 * A link is known by its newer end: by the XID of the update, which is the
 * xmin there and the updating xmax at the older end, and by the old TID, which
 * the older end has as its t_ctid.  Whichever end comes first is remembered;
 * a version that points at another waits for it.
 *
 * The newer end may be dead although the older one is taken for recently dead,
 * if the row was deleted by a transaction with a smaller XID than that of the
 * update.  Then in truth nobody sees the older end either, nor the versions
 * before, and they must go, too: the values that they point at may have gone.
 * Such versions are found before anything is copied.  If the newer end is gone
 * already, the older one is kept, with a link to itself.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "debug_point.h"
#include "report/progress.h"
#include "rewrite/rewrite.h"
#include "rewrite/tuple_fate.h"

/* The newer end of a link; without padding that isn't zeroed */
typedef struct LinkKey
{
	TransactionId update_xid;
	ItemPointerData tid;		/* in the old heap */
} LinkKey;

/* One version of a row */
typedef struct Version
{
	bool		is_newer_end;
	LinkKey		own;			/* then this is the link's key */
	bool		is_older_end;
	LinkKey		newer;			/* then it points there */
	bool		is_dead;
	HeapTuple	copy;			/* for the new heap, if wanted */
} Version;

/* A version whose newer end hasn't been written yet */
typedef struct WaitingEntry
{
	LinkKey		key;
	Version		version;
} WaitingEntry;

/* A newer end that has been written */
typedef struct PlacedEntry
{
	LinkKey		key;
	ItemPointerData tid;		/* in the new heap */
} PlacedEntry;

typedef struct ChainPass
{
	TableRewrite *rewrite;
	const BlockNumber *blocks;
	int64		nblocks;
	RewriteCounters *sum;
	int64		ntuples;		/* found in the last pass */
	bool		found_dead;		/* in the last pass, some more */
	HTAB	   *dead;			/* LinkKeys of dead newer ends */
	HTAB	   *waiting;
	HTAB	   *placed;
} ChainPass;

/* What is done with a version */
typedef void (*VersionRoutine) (ChainPass *pass, const Version *version);

static void for_each_version(ChainPass *pass, VersionRoutine routine, bool wants_copies);
static void visit_page(ChainPass *pass, Buffer buffer, VersionRoutine routine, bool wants_copies);
static Version *describe(ChainPass *pass, HeapTuple tuple, TupleFate fate, uint16 infomask,
						 bool wants_copy);
static LinkKey link_key(TransactionId update_xid, const ItemPointerData *tid);
static void note_if_dead(ChainPass *pass, const Version *version);
static void place_or_wait(ChainPass *pass, const Version *version);
static void write_with_older_ends(ChainPass *pass, Version version);
static void write_those_still_waiting(ChainPass *pass);
static HTAB *create_table(const char *name, Size entry_size, MemoryContext context);

/*
 * update_chains_copy
 *		Leader, after the phase: copy what was left out in these blocks of the
 *		table.  What the team has counted is brought up to date.
 */
void
update_chains_copy(TableRewrite *rewrite, const BlockNumber *blocks, int64 nblocks,
				   RewriteCounters *sum)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "Update chains",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	ChainPass	pass = {
		.rewrite = rewrite,
		.blocks = blocks,
		.nblocks = nblocks,
		.sum = sum,
		.dead = create_table("Dead newer ends", sizeof(LinkKey), context),
		.waiting = create_table("Waiting versions", sizeof(WaitingEntry), context),
		.placed = create_table("Placed newer ends", sizeof(PlacedEntry), context)
	};

	progress_phase(PROGRESS_REWRITE_COPY_CHAINS, nblocks);

	/* each one found may have an older end */
	do
	{
		pass.found_dead = false;
		for_each_version(&pass, note_if_dead, false);
	} while (pass.found_dead);

	for_each_version(&pass, place_or_wait, true);
	if (pass.ntuples != sum->tuples_in_chains)
		elog(ERROR, "found %lld linked row versions in table \"%s\" where there were %lld before",
			 (long long) pass.ntuples,
			 RelationGetRelationName(rewrite->old_heaps[REWRITE_TABLE]), (long long) sum->tuples_in_chains);
	write_those_still_waiting(&pass);

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/*
 * for_each_version
 *		Call the routine with each linked version.
 */
static void
for_each_version(ChainPass *pass, VersionRoutine routine, bool wants_copies)
{
	TableRewrite *rewrite = pass->rewrite;

	pass->ntuples = 0;
	for (int64 i = 0; i < pass->nblocks; i++)
	{
		Buffer		buffer = ReadBuffer(rewrite->old_heaps[REWRITE_TABLE], pass->blocks[i]);

		rewrite->place = rewrite->old_heaps[REWRITE_TABLE];
		rewrite->blkno = pass->blocks[i];
		visit_page(pass, buffer, routine, wants_copies);
		ReleaseBuffer(buffer);
		rewrite->place = NULL;

		new_pages_flush(rewrite->new_pages);
		progress_blocks_done(i + 1);
		DEBUG_POINT("update-chains");
		delay_point();
	}
}

/*
 * visit_page
 *		Call the routine with each linked version on a page, which is pinned.
 */
static void
visit_page(ChainPass *pass, Buffer buffer, VersionRoutine routine, bool wants_copies)
{
	TableRewrite *rewrite = pass->rewrite;
	Relation	rel = rewrite->old_heaps[REWRITE_TABLE];
	TransactionId oldest_xmin = rewrite->shared->heaps[REWRITE_TABLE].oldest_xmin;
	Page		page = BufferGetPage(buffer);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	HeapTupleData tuple;
	List	   *versions = NIL;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		TupleFate	fate;
		uint16		infomask;

		if (!heap_copy_find_tuple(rel, page, rewrite->blkno, off, &tuple))
			continue;
		fate = tuple_fate(rel, &tuple, buffer, oldest_xmin, &infomask);
		if (tuple_is_in_chain(&tuple, fate, infomask, oldest_xmin))
			versions = lappend(versions, describe(pass, &tuple, fate, infomask, wants_copies));
	}
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);

	pass->ntuples += list_length(versions);
	foreach_ptr(Version, version, versions)
	{
		routine(pass, version);
		/* it may come with versions from any number of other pages */
		new_pages_flush(rewrite->new_pages);
	}
	list_free_deep(versions);
}

/*
 * describe
 *		Find out what a tuple is linked with.
 */
static Version *
describe(ChainPass *pass, HeapTuple tuple, TupleFate fate, uint16 infomask, bool wants_copy)
{
	TransactionId oldest_xmin = pass->rewrite->shared->heaps[REWRITE_TABLE].oldest_xmin;
	HeapTupleHeader header = tuple->t_data;
	Version    *version = palloc0_object(Version);

	version->is_newer_end = tuple_is_newer_end(header, infomask, oldest_xmin);
	version->own = link_key(HeapTupleHeaderGetRawXmin(header), &tuple->t_self);
	version->is_dead = fate == TUPLE_DEAD;
	if (version->is_dead)
		return version;

	version->is_older_end = tuple_is_older_end(tuple, infomask);
	if (version->is_older_end)
		version->newer = link_key(HeapTupleHeaderGetUpdateXid(header), &header->t_ctid);
	if (wants_copy)
		version->copy = heap_copy_tuple(pass->rewrite, tuple, infomask);
	return version;
}

/* link_key -- the key of a link with this newer end. */
static LinkKey
link_key(TransactionId update_xid, const ItemPointerData *tid)
{
	LinkKey		key;

	memset(&key, 0, sizeof(key));
	key.update_xid = update_xid;
	key.tid = *tid;
	return key;
}

/*
 * note_if_dead
 *		Remember a newer end if it is dead, or points at one that is.
 */
static void
note_if_dead(ChainPass *pass, const Version *version)
{
	bool		is_dead = version->is_dead ||
		(version->is_older_end && hash_search(pass->dead, &version->newer, HASH_FIND, NULL) != NULL);
	bool		found;

	if (!is_dead || !version->is_newer_end)
		return;
	(void) hash_search(pass->dead, &version->own, HASH_ENTER, &found);
	if (!found)
		pass->found_dead = true;
}

/*
 * place_or_wait
 *		Write a version, unless it is dead after all, or must wait.
 */
static void
place_or_wait(ChainPass *pass, const Version *version)
{
	Version		placeable = *version;

	if (version->is_dead)
		return;					/* counted as removed already */
	if (version->is_older_end)
	{
		PlacedEntry *placed;
		WaitingEntry *waiting;
		bool		found;

		if (hash_search(pass->dead, &version->newer, HASH_FIND, NULL) != NULL)
		{
			pass->sum->tuples_removed++;
			pass->sum->tuples_kept--;
			pass->sum->tuples_recently_dead--;
			heap_freetuple(version->copy);
			return;
		}
		placed = hash_search(pass->placed, &version->newer, HASH_FIND, NULL);
		if (placed == NULL)
		{
			waiting = hash_search(pass->waiting, &version->newer, HASH_ENTER, &found);
			if (found)
				elog(ERROR, "two row versions in table \"%s\" point at (%u,%u)",
					 RelationGetRelationName(pass->rewrite->old_heaps[REWRITE_TABLE]),
					 ItemPointerGetBlockNumber(&version->newer.tid),
					 ItemPointerGetOffsetNumber(&version->newer.tid));
			waiting->version = *version;
			return;
		}
		placeable.copy->t_data->t_ctid = placed->tid;
		(void) hash_search(pass->placed, &version->newer, HASH_REMOVE, NULL);
	}
	write_with_older_ends(pass, placeable);
}

/*
 * write_with_older_ends
 *		Write a version, and those before it that have been waiting.
 */
static void
write_with_older_ends(ChainPass *pass, Version version)
{
	NewPages   *pages = pass->rewrite->new_pages;

	for (;;)
	{
		HeapTupleHeader written = new_pages_add(pages, version.copy->t_data, version.copy->t_len);
		ItemPointerData tid;
		WaitingEntry *waiting;

		CHECK_FOR_INTERRUPTS();
		new_pages_tid(pages, written, &tid);
		new_pages_flush(pages);
		heap_copy_note_values(pass->rewrite, version.copy);
		heap_freetuple(version.copy);
		if (!version.is_newer_end)
			return;

		waiting = hash_search(pass->waiting, &version.own, HASH_FIND, NULL);
		if (waiting == NULL)
		{
			PlacedEntry *placed = hash_search(pass->placed, &version.own, HASH_ENTER, NULL);

			placed->tid = tid;
			return;
		}
		version = waiting->version;
		version.copy->t_data->t_ctid = tid;
		(void) hash_search(pass->waiting, &version.newer, HASH_REMOVE, NULL);
	}
}

/*
 * write_those_still_waiting
 *		Write the versions whose newer ends there are none of any more.
 */
static void
write_those_still_waiting(ChainPass *pass)
{
	HASH_SEQ_STATUS sequence;
	WaitingEntry *waiting;
	List	   *keys = NIL;

	hash_seq_init(&sequence, pass->waiting);
	while ((waiting = hash_seq_search(&sequence)) != NULL)
	{
		LinkKey    *key = palloc_object(LinkKey);

		*key = waiting->key;
		keys = lappend(keys, key);
	}

	foreach_ptr(LinkKey, key, keys)
	{
		Version		version;

		waiting = hash_search(pass->waiting, key, HASH_FIND, NULL);
		if (waiting == NULL)
			continue;			/* it came along with one before */
		version = waiting->version;
		(void) hash_search(pass->waiting, key, HASH_REMOVE, NULL);
		write_with_older_ends(pass, version);
	}
	list_free_deep(keys);
}

/* create_table -- a hash table by LinkKeys. */
static HTAB *
create_table(const char *name, Size entry_size, MemoryContext context)
{
	HASHCTL		control = {
		.keysize = sizeof(LinkKey),
		.entrysize = entry_size,
		.hcxt = context
	};

	return hash_create(name, 128, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}
