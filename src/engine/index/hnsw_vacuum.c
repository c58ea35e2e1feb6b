/*-------------------------------------------------------------------------
 *
 * hnsw_vacuum.c
 *	  Bulk deletion in pgvector's HNSW indexes, by any number of processes in one index.
 *
 * An index is passed over several times, by all members in ranges of blocks, and no pass
 * begins before the last one has ended (HnswStage).  Between two passes the leader waits
 * until insertions or searches are through that began before.  What the passes do is what
 * pgvector's own bulk deletion does, but for how elements get new neighbours
 * (hnsw_repair.c).
 *
 * README.md says what insertions and searches rely on, and why they may go on meanwhile.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/memutils.h"
#include "varatt.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/index/hnsw_page.h"
#include "relation_size.h"

/* an element isn't smaller than what is in front of its vector */
#define MAX_TIDS	(BLCKSZ / HNSW_VECTOR_AT * HNSW_ROWS)

static uint32 words_a_block(Relation index, HnswMeta *meta);
static Size hnsw_sets_size(Relation index);
static void hnsw_setup(TableVacuum *vacuum, int number);
static void hnsw_begin(TableVacuum *vacuum, int number, int nmembers);
static HnswScan *make_scan(TableVacuum *vacuum, int number);
static void free_scan(HnswScan *scan);
static void hnsw_work(TableVacuum *vacuum, int number);
static bool hnsw_is_done(TableVacuum *vacuum, int number);
static void hnsw_more_work(TableVacuum *vacuum, int number);
static void hnsw_next_stage(TableVacuum *vacuum, int number);
static void settle_entry(TableVacuum *vacuum, int number);
static void visit_for_remove(KindScan *base, Buffer buffer);
static void remove_rows(HnswScan *scan, Buffer buffer, const bool *is_dead, int ntids);
static void visit_for_repair(KindScan *base, Buffer buffer);
static void visit_for_confirm(KindScan *base, Buffer buffer);
static void visit_for_mark(KindScan *base, Buffer buffer);
static void mark_deleted(HnswScan *scan, Buffer buffer, OffsetNumber off);

const IndexKind hnsw_kind = {
	.name = "hnsw",
	.shared_size = offsetof(HnswShared, words),
	.more_shared_size = hnsw_sets_size,
	.setup = hnsw_setup,
	.bulk_delete = {
		.begin = hnsw_begin,
		.work = hnsw_work,
		.is_done = hnsw_is_done,
		.prepare_more = hnsw_next_stage,
		.more_work = hnsw_more_work,
		.finish = index_leave_stats,
	},
};

/*
 * words_a_block
 *		Read the metapage; how many words have a bit for each item that a page may have?
 *
 * An element's list is on its page if both fit on one, and each has a line pointer.
 */
static uint32
words_a_block(Relation index, HnswMeta *meta)
{
	Size		element = MAXALIGN(HNSW_VECTOR_AT + VARHDRSZ) + sizeof(ItemIdData);
	Size		list;

	if (!hnsw_read_meta(index, meta))
		index_report_page(index, HNSW_META_BLOCK);
	list = MAXALIGN(HNSW_LINKS_AT + 2 * meta->m * sizeof(ItemPointerData)) + sizeof(ItemIdData);
	return 2 * (BLCKSZ / (element + list)) / 64 + 1;
}

/* hnsw_sets_size -- how much memory do the sets of this index take? */
static Size
hnsw_sets_size(Relation index)
{
	HnswMeta	meta;

	return mul_size(relation_blocks(index),
					HNSW_SETS * words_a_block(index, &meta) * sizeof(pg_atomic_uint64));
}

/* hnsw_setup -- note how the index was made, and for how many blocks there is memory. */
static void
hnsw_setup(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);
	Size		bytes = vacuum_index(vacuum->shared, number)->area_size - offsetof(HnswShared, words);
	HnswMeta	meta;

	hnsw->words_a_block = words_a_block(vacuum->indexes[number], &meta);
	hnsw->nblocks = bytes / (HNSW_SETS * hnsw->words_a_block * sizeof(pg_atomic_uint64));
	hnsw->m = meta.m;
	hnsw->ef = Max(meta.ef_construction, 2 * meta.m);
}

/* hnsw_begin -- make an index's blocks available to take out TIDs. */
static void
hnsw_begin(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	HnswShared *hnsw = index_area(vacuum, number);

	Assert(is_leader(vacuum));
	index_begin_blocks(vacuum, number, HNSW_FIRST_BLOCK, nmembers);
	shared->stats.estimated_count = false;
	shared->stats.num_index_tuples = 0;

	hnsw->stage = HNSW_REMOVE;
	hnsw->rows_are_removed = false;
	hnsw->nmembers = nmembers;
	hnsw->first_free = InvalidBlockNumber;
	hnsw->top_level = -1;
	ItemPointerSetInvalid(&hnsw->top);
	pg_atomic_init_u64(&hnsw->ndead, 0);
	pg_atomic_init_u64(&hnsw->unconfirmed, 0);
	for (Size i = 0; i < (Size) HNSW_SETS * hnsw->nblocks * hnsw->words_a_block; i++)
		pg_atomic_init_u64(&hnsw->words[i], 0);
}

/* make_scan -- make what a process needs in one index. */
static HnswScan *
make_scan(TableVacuum *vacuum, int number)
{
	HnswScan   *scan = kind_scan_make(vacuum, number, sizeof(HnswScan));

	scan->hnsw = index_area(vacuum, number);
	scan->m = scan->hnsw->m;
	scan->max_nodes = 4 * scan->hnsw->ef;
	scan->distance = index_getprocinfo(scan->base.index, 1, 1);
	scan->top_level = -1;
	scan->first_free = InvalidBlockNumber;
	scan->page_context = AllocSetContextCreate(CurrentMemoryContext, "pg_cyclone HNSW page",
											   ALLOCSET_DEFAULT_SIZES);
	scan->element_context = AllocSetContextCreate(CurrentMemoryContext, "pg_cyclone HNSW element",
												  0, 256 * 1024, 1024 * 1024);
	scan->seen = followed_create(CurrentMemoryContext, scan->max_nodes, NULL);
	scan->visited = followed_create(CurrentMemoryContext, 2 * scan->max_nodes, NULL);
	scan->nodes = palloc_array(HnswNode, scan->max_nodes + 1);
	return scan;
}

/* free_scan -- tell what was done, and free it. */
static void
free_scan(HnswScan *scan)
{
	HnswShared *hnsw = scan->hnsw;
	IndexShared *shared = scan->base.shared;

	SpinLockAcquire(&shared->mutex);
	if (scan->top_level > hnsw->top_level)
	{
		hnsw->top_level = scan->top_level;
		hnsw->top = scan->top;
	}
	hnsw->first_free = Min(hnsw->first_free, scan->first_free);
	shared->graph.dead += scan->result.dead;
	shared->graph.repaired += scan->result.repaired;
	shared->graph.searched += scan->result.searched;
	shared->graph.linked += scan->result.linked;
	SpinLockRelease(&shared->mutex);

	MemoryContextDelete(scan->page_context);
	MemoryContextDelete(scan->element_context);
	followed_destroy(scan->seen);
	followed_destroy(scan->visited);
	pfree(scan->nodes);
	kind_scan_free(&scan->base);
}

/* hnsw_work -- one process's part of a pass: claim blocks until none is left. */
static void
hnsw_work(TableVacuum *vacuum, int number)
{
	static void (*const visits[]) (KindScan *, Buffer) = {
		[HNSW_REMOVE] = visit_for_remove,
		[HNSW_REPAIR] = visit_for_repair,
		[HNSW_CONFIRM] = visit_for_confirm,
		[HNSW_MARK] = visit_for_mark,
	};
	HnswShared *hnsw = index_area(vacuum, number);
	HnswScan   *scan;

	if (hnsw->stage == HNSW_DONE)
		return;
	scan = make_scan(vacuum, number);
	scan->base.visit = visits[hnsw->stage];
	if (hnsw->stage == HNSW_CONFIRM)
		hnsw_reach_from(scan, &hnsw->entry);
	index_visit_blocks(&scan->base);
	free_scan(scan);
	index_want_more_work(vacuum, number);
}

/* hnsw_is_done -- are the TIDs of all dead items out?  What is left then does no harm, and the next VACUUM does it. */
static bool
hnsw_is_done(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);

	return hnsw->rows_are_removed ||
		(hnsw->stage == HNSW_REMOVE && index_blocks_are_claimed(vacuum, number));
}

/* hnsw_more_work -- a pass; or all that are left, of an index that the leader does alone. */
static void
hnsw_more_work(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);
	bool		alone = vacuum_index(vacuum->shared, number)->leader_only;

	do
	{
		if (alone)
			hnsw_next_stage(vacuum, number);
		hnsw_work(vacuum, number);
	} while (alone && hnsw->stage != HNSW_DONE);
}

/* hnsw_next_stage -- leader: a pass has ended; begin the next one. */
static void
hnsw_next_stage(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);
	Relation	index = vacuum->indexes[number];

	Assert(is_leader(vacuum));
	if (hnsw->stage == HNSW_REMOVE)
		hnsw->rows_are_removed = index_blocks_are_claimed(vacuum, number);
	/* insertions look there for room */
	if (hnsw->stage == HNSW_MARK && hnsw->first_free != InvalidBlockNumber)
		hnsw_change_meta(index, NULL, 0, hnsw->first_free);
	/* a pass that wasn't whole proves nothing; and the failsafe leaves the graph as it is */
	if (hnsw->stage == HNSW_DONE || !index_blocks_are_claimed(vacuum, number) ||
		pg_atomic_read_u64(&hnsw->ndead) == 0 || failsafe_check(vacuum))
		hnsw->stage = HNSW_DONE;
	else
		hnsw->stage++;
	if (hnsw->stage == HNSW_MARK && pg_atomic_read_u64(&hnsw->unconfirmed) > 0)
	{
		/* no link may lead to an element that is marked deleted */
		ereport(WARNING,
				(errmsg("index \"%s\" keeps dead elements, as links still lead to them",
						RelationGetRelationName(index)),
				 errhint("Please REINDEX it.")));
		hnsw->stage = HNSW_DONE;
	}
	if (hnsw->stage == HNSW_DONE)
		return;

	/* insertions may have come by elements that lead to dead ones, and searches to these */
	if (hnsw->stage != HNSW_MARK)
		settle_entry(vacuum, number);
	else
	{
		LockPage(index, HNSW_SEARCHES, ExclusiveLock);
		UnlockPage(index, HNSW_SEARCHES, ExclusiveLock);
	}
	index_begin_blocks(vacuum, number, HNSW_FIRST_BLOCK, hnsw->nmembers);
}

/*
 * settle_entry
 *		Wait until insertions are through, and make the live element with the most layers the
 *		entry point if that is dead, or has fewer; there is none if no element is live.
 */
static void
settle_entry(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);
	Relation	index = vacuum->indexes[number];
	int			level;

	LockPage(index, HNSW_INSERTS, ExclusiveLock);
	hnsw_read_entry(index, &hnsw->entry, &level);
	if (level < hnsw->top_level || hnsw_has_bit(hnsw, HNSW_DEAD, &hnsw->entry))
	{
		hnsw->entry = hnsw->top;
		hnsw_change_meta(index, &hnsw->top, hnsw->top_level, InvalidBlockNumber);
	}
	UnlockPage(index, HNSW_INSERTS, ExclusiveLock);
}

/*
 * visit_for_remove
 *		Take the TIDs of dead items out of the elements of a pinned page, and note which
 *		elements have none left.
 */
static void
visit_for_remove(KindScan *base, Buffer buffer)
{
	HnswScan   *scan = (HnswScan *) base;
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	ItemPointerData tids[MAX_TIDS];
	bool		is_dead[MAX_TIDS];
	OffsetNumber maxoff;
	int			ntids = 0;
	int			ndead;

	DEBUG_POINT("hnsw-remove");
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	if (PageIsNew(page))
	{
		UnlockReleaseBuffer(buffer);
		return;
	}
	hnsw_check_page(scan->base.index, buffer);
	maxoff = PageGetMaxOffsetNumber(page);
	if (maxoff > 64 * scan->hnsw->words_a_block)
		index_report_page(scan->base.index, blkno);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		HnswElement *element = hnsw_element_at(page, off);

		if (!hnsw_is_live(element))
			continue;
		if (ntids + HNSW_ROWS > MAX_TIDS)
			index_report_page(scan->base.index, blkno);
		for (int i = 0; i < HNSW_ROWS && ItemPointerIsValid(&element->rows[i]); i++)
			tids[ntids++] = element->rows[i];
	}
	ndead = dead_tids_match(scan->base.vacuum->dead_tids, tids, ntids, is_dead);
	scan->base.stats.tuples_removed += ndead;
	scan->base.stats.num_index_tuples += ntids - ndead;
	if (ndead > 0 && !DEBUG_FAULT("hnsw-rows"))
		remove_rows(scan, buffer, is_dead, ntids);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		HnswElement *element = hnsw_element_at(page, off);
		ItemPointerData tid;

		if (element == NULL || element->deleted)
			continue;
		ItemPointerSet(&tid, blkno, off);
		if (ItemPointerIsValid(&element->rows[0]))
			hnsw_note_top(scan, element->level, &tid);
		/* those on blocks that came later are left to the next VACUUM */
		else if (hnsw_set_bit(scan->hnsw, HNSW_DEAD, &tid))
		{
			pg_atomic_fetch_add_u64(&scan->hnsw->ndead, 1);
			scan->result.dead++;
		}
	}
	UnlockReleaseBuffer(buffer);
}

/* remove_rows -- take out the TIDs that are dead, in the order in which they were gathered. */
static void
remove_rows(HnswScan *scan, Buffer buffer, const bool *is_dead, int ntids)
{
	GenericXLogState *state = GenericXLogStart(scan->base.index);
	Page		page = GenericXLogRegisterBuffer(state, buffer, 0);
	int			next = 0;

	for (OffsetNumber off = FirstOffsetNumber; next < ntids; off++)
	{
		HnswElement *element = hnsw_element_at(page, off);
		int			nkept = 0;

		if (!hnsw_is_live(element))
			continue;
		for (int i = 0; i < HNSW_ROWS; i++)
		{
			if (!ItemPointerIsValid(&element->rows[i]))
				break;
			if (!is_dead[next++])
				element->rows[nkept++] = element->rows[i];
		}
		while (nkept < HNSW_ROWS && ItemPointerIsValid(&element->rows[nkept]))
			ItemPointerSetInvalid(&element->rows[nkept++]);
	}
	GenericXLogFinish(state);
}

/* visit_for_repair -- repair the live elements of a pinned page. */
static void
visit_for_repair(KindScan *base, Buffer buffer)
{
	HnswScan   *scan = (HnswScan *) base;

	DEBUG_POINT("hnsw-repair");
	if (hnsw_copy_page(scan, buffer))
		hnsw_repair_page(scan, BufferGetBlockNumber(buffer));
	ReleaseBuffer(buffer);
}

/* visit_for_confirm -- do the live elements of a pinned page lead to live ones? */
static void
visit_for_confirm(KindScan *base, Buffer buffer)
{
	HnswScan   *scan = (HnswScan *) base;

	DEBUG_POINT("hnsw-walk");
	if (hnsw_copy_page(scan, buffer))
		hnsw_confirm_page(scan, BufferGetBlockNumber(buffer));
	ReleaseBuffer(buffer);
}

/*
 * visit_for_mark
 *		Link live elements of a pinned page that aren't reached, and mark the dead ones as
 *		deleted.
 *
 * A cleanup lock, as pgvector takes one: this process waits only for pages of its own ranges.
 */
static void
visit_for_mark(KindScan *base, Buffer buffer)
{
	HnswScan   *scan = (HnswScan *) base;
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	Page		page = BufferGetPage(buffer);

	if (blkno >= scan->hnsw->nblocks || !hnsw_copy_page(scan, buffer))
	{
		ReleaseBuffer(buffer);
		return;
	}
	hnsw_link_page(scan, blkno);
	DEBUG_POINT("hnsw-mark");
	LockBufferForCleanup(buffer);
	hnsw_check_page(scan->base.index, buffer);
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		HnswElement *element = hnsw_element_at(page, off);
		ItemPointerData tid;

		ItemPointerSet(&tid, blkno, off);
		if (element == NULL)
			continue;
		if (!element->deleted && !hnsw_is_live(element) && hnsw_has_bit(scan->hnsw, HNSW_DEAD, &tid))
			mark_deleted(scan, buffer, off);
		if (element->deleted)
			scan->first_free = Min(scan->first_free, blkno);
	}
	UnlockReleaseBuffer(buffer);
}

/*
 * mark_deleted
 *		Write what pgvector leaves of a deleted element of a locked page, and of its list.
 *
 * A list that isn't on its element's page is on a later one, and locked after it, as
 * insertions do.  The version changes, so that a search that remembers the element finds that
 * its list isn't what it was.
 */
static void
mark_deleted(HnswScan *scan, Buffer buffer, OffsetNumber off)
{
	GenericXLogState *state = GenericXLogStart(scan->base.index);
	Page		page = GenericXLogRegisterBuffer(state, buffer, 0);
	HnswElement *element = hnsw_element_at(page, off);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	BlockNumber list_block = ItemPointerGetBlockNumberNoCheck(&element->list);
	Buffer		list_buffer = InvalidBuffer;
	HnswList   *list;

	if (list_block < blkno)
		index_report_page(scan->base.index, blkno);
	if (list_block > blkno)
	{
		list_buffer = ReadBuffer(scan->base.index, list_block);
		LockBuffer(list_buffer, BUFFER_LOCK_EXCLUSIVE);
		page = GenericXLogRegisterBuffer(state, list_buffer, 0);
	}
	list = hnsw_list_at(page, ItemPointerGetOffsetNumberNoCheck(&element->list));
	if (list == NULL || list->version != element->version ||
		list->count != (element->level + 2) * scan->m)
		index_report_page(scan->base.index, list_block);
	element->deleted = 1;
	memset(element->vector, 0, VARSIZE_4B(element->vector));
	for (int i = 0; i < list->count; i++)
		ItemPointerSetInvalid(&list->links[i]);
	element->version = element->version >= 15 ? 1 : element->version + 1;
	list->version = element->version;
	GenericXLogFinish(state);
	if (BufferIsValid(list_buffer))
		UnlockReleaseBuffer(list_buffer);
}
