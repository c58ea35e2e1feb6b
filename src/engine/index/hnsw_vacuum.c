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
#include "storage/spin.h"
#include "utils/memutils.h"
#include "varatt.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/index/hnsw_page.h"
#include "team/attempt.h"

/* the walk is begun anew at most this many times, and links are confirmed as often */
#define MAX_WALKS	3

/* an element isn't smaller than what is in front of its vector */
#define MAX_TIDS	(BLCKSZ / HNSW_VECTOR_AT * HNSW_ROWS)

static void hnsw_begin(TableVacuum *vacuum, int number, int nmembers);
static Size set_up_bits(HnswShared *hnsw);
static bool find_bits(HnswScan *scan);
static HnswScan *make_scan(TableVacuum *vacuum, int number);
static void free_scan(HnswScan *scan);
static void hnsw_work(TableVacuum *vacuum, int number);
static bool hnsw_is_done(TableVacuum *vacuum, int number);
static void hnsw_next_stage(TableVacuum *vacuum, int number);
static void hnsw_more_work(TableVacuum *vacuum, int number);
static void hnsw_end(TableVacuum *vacuum, int number);
static void hnsw_conclude(TableVacuum *vacuum, int number);
static void settle_entry(TableVacuum *vacuum, int number, bool raise);
static void begin_walk(TableVacuum *vacuum, int number);
static HnswStage stage_after_walk(TableVacuum *vacuum, int number);
static bool is_settled(KindScan *base, BlockNumber blkno);
static void note_top(HnswScan *scan, int level, BlockNumber blkno, OffsetNumber off);
static void visit_for_remove(KindScan *base, Buffer buffer);
static void remove_rows(HnswScan *scan, Buffer buffer, const bool *is_dead, int ntids);
static void visit_for_repair(KindScan *base, Buffer buffer);
static void visit_for_mark(KindScan *base, Buffer buffer);
static void mark_elements(HnswScan *scan, Buffer buffer);
static bool mark_deleted(HnswScan *scan, HnswElement *element, Page list_page);

const IndexKind hnsw_kind = {
	.name = "hnsw",
	.shared_size = sizeof(HnswShared),
	.bulk_delete = {
		.begin = hnsw_begin,
		.work = hnsw_work,
		.is_done = hnsw_is_done,
		.prepare_more = hnsw_next_stage,
		.more_work = hnsw_more_work,
		.end = hnsw_end,
		.conclude = hnsw_conclude,
		.finish = index_leave_stats,
	},
};

/* hnsw_begin -- make an index's blocks available to take out TIDs. */
static void
hnsw_begin(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	HnswShared *hnsw = index_area(vacuum, number);
	dsm_segment *segment = NULL;
	char	   *failure = NULL;
	HnswMeta	meta;
	Size		size;

	Assert(is_leader(vacuum));
	hnsw_read_meta(vacuum->indexes[number], &meta);
	index_begin_blocks(vacuum, number, HNSW_FIRST_BLOCK, nmembers);
	shared->stats.estimated_count = false;
	shared->stats.num_index_tuples = 0;

	memset(hnsw, 0, sizeof(HnswShared));
	hnsw->stage = HNSW_REMOVE;
	hnsw->m = meta.m;
	hnsw->ef = Max(meta.ef_construction, 2 * meta.m);
	hnsw->nmembers = nmembers;
	hnsw->nblocks = shared->ranges.end;
	hnsw->top_level = -1;
	hnsw->first_free = InvalidBlockNumber;
	pg_atomic_init_u64(&hnsw->ndead, 0);
	pg_atomic_init_u64(&hnsw->unconfirmed, 0);
	pg_atomic_init_u64(&hnsw->reached, 0);

	size = set_up_bits(hnsw);
	hnsw->handle = DSM_HANDLE_INVALID;
	if (nmembers > 1)
		segment = attempt_create_segment(size, &failure);
	if (segment != NULL)
	{
		hnsw->handle = dsm_segment_handle(segment);
		memset(dsm_segment_address(segment), 0, size);
	}
	else
		hnsw->own_bits = MemoryContextAllocExtended(CurrentMemoryContext, size,
													MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

/*
 * set_up_bits
 *		How many words have a bit for each item that a page may have?  Return how many bytes
 *		the three sets take.
 *
 * An element's list is on its page if both fit on one, and each has a line pointer.
 */
static Size
set_up_bits(HnswShared *hnsw)
{
	Size		element = MAXALIGN(HNSW_VECTOR_AT + VARHDRSZ) + sizeof(ItemIdData);
	Size		list = MAXALIGN(HNSW_LINKS_AT + 2 * hnsw->m * sizeof(ItemPointerData)) + sizeof(ItemIdData);

	hnsw->words_a_block = 2 * (BLCKSZ / (element + list)) / 64 + 1;
	return ((Size) hnsw->nblocks * hnsw->words_a_block * 2 + hnsw->nblocks / 64 + 1) * sizeof(uint64);
}

/* find_bits -- find them in this process; return false if it can't have them. */
static bool
find_bits(HnswScan *scan)
{
	HnswShared *hnsw = scan->hnsw;
	Size		words = (Size) hnsw->nblocks * hnsw->words_a_block;
	char	   *failure = NULL;
	dsm_segment *segment;

	if (hnsw->handle != DSM_HANDLE_INVALID)
	{
		segment = dsm_find_mapping(hnsw->handle);
		if (segment == NULL)
			segment = scan->segment = attempt_attach_segment(hnsw->handle, &failure);
		if (segment == NULL)
			return false;
		scan->dead = dsm_segment_address(segment);
	}
	else if (is_leader(scan->base.vacuum))
		scan->dead = (HnswBits) hnsw->own_bits;
	else
		return false;
	scan->reached = scan->dead + words;
	scan->settled = scan->reached + words;
	return true;
}

/* make_scan -- make what a process needs in one index; NULL if it can't have that. */
static HnswScan *
make_scan(TableVacuum *vacuum, int number)
{
	HnswScan   *scan = kind_scan_make(vacuum, number, sizeof(HnswScan));

	scan->hnsw = index_area(vacuum, number);
	if (!find_bits(scan))
	{
		kind_scan_free(&scan->base);
		return NULL;
	}
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
	if (scan->segment != NULL)
		dsm_detach(scan->segment);
	kind_scan_free(&scan->base);
}

/* hnsw_work -- one process's part of a pass: claim blocks until none is left. */
static void
hnsw_work(TableVacuum *vacuum, int number)
{
	static void (*const visits[]) (KindScan *, Buffer) = {
		[HNSW_REMOVE] = visit_for_remove,
		[HNSW_REPAIR] = visit_for_repair,
		[HNSW_CONFIRM] = hnsw_visit_for_walk,
		[HNSW_WALK] = hnsw_visit_for_walk,
		[HNSW_LINK] = hnsw_visit_for_link,
		[HNSW_MARK] = visit_for_mark,
	};
	HnswShared *hnsw = index_area(vacuum, number);
	HnswScan   *scan;

	if (hnsw->stage == HNSW_DONE || (scan = make_scan(vacuum, number)) == NULL)
		return;
	scan->base.visit = visits[hnsw->stage];
	if (hnsw->stage == HNSW_WALK || hnsw->stage == HNSW_LINK)
		scan->base.skips = is_settled;
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

	if (!vacuum_index(vacuum->shared, number)->leader_only)
	{
		hnsw_work(vacuum, number);
		return;
	}
	for (;;)
	{
		hnsw_next_stage(vacuum, number);
		if (hnsw->stage == HNSW_DONE)
			break;
		hnsw_work(vacuum, number);
	}
}

/* hnsw_next_stage -- leader: a pass has ended; begin the next one. */
static void
hnsw_next_stage(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);

	Assert(is_leader(vacuum));
	if (hnsw->stage == HNSW_REMOVE)
		hnsw->rows_are_removed = index_blocks_are_claimed(vacuum, number);
	/* a pass that wasn't whole proves nothing; and the failsafe leaves the graph as it is */
	if (!index_blocks_are_claimed(vacuum, number) || pg_atomic_read_u64(&hnsw->ndead) == 0 ||
		failsafe_check(vacuum))
		hnsw->stage = HNSW_DONE;
	switch (hnsw->stage)
	{
		case HNSW_REMOVE:
			settle_entry(vacuum, number, false);
			hnsw->stage = HNSW_REPAIR;
			break;
		case HNSW_REPAIR:
		case HNSW_CONFIRM:
		case HNSW_WALK:
		case HNSW_LINK:
			hnsw->stage = stage_after_walk(vacuum, number);
			if (hnsw->stage == HNSW_CONFIRM)
			{
				/* insertions may have come by elements that led to dead ones */
				settle_entry(vacuum, number, true);
				begin_walk(vacuum, number);
			}
			else if (hnsw->stage == HNSW_MARK)
			{
				/* searches that have begun may still come to dead elements */
				LockPage(vacuum->indexes[number], HNSW_SEARCHES, ExclusiveLock);
				UnlockPage(vacuum->indexes[number], HNSW_SEARCHES, ExclusiveLock);
			}
			break;
		case HNSW_MARK:
			hnsw->stage = HNSW_DONE;
			return;
		case HNSW_DONE:
			return;
	}
	if (hnsw->stage != HNSW_DONE)
		index_begin_blocks(vacuum, number, HNSW_FIRST_BLOCK, hnsw->nmembers);
}

/*
 * settle_entry
 *		Wait until insertions are through, and have another entry point if it is dead; or,
 *		to raise it, if there is none, or an element with more layers.
 */
static void
settle_entry(TableVacuum *vacuum, int number, bool raise)
{
	HnswShared *hnsw = index_area(vacuum, number);
	HnswScan   *scan = make_scan(vacuum, number);
	Relation	index = vacuum->indexes[number];
	ItemPointerData entry;
	HnswMeta	meta;
	bool		has_entry;

	LockPage(index, HNSW_INSERTS, ExclusiveLock);
	hnsw_read_meta(index, &meta);
	ItemPointerSet(&entry, meta.entry_block, meta.entry_offset);
	has_entry = meta.entry_block != InvalidBlockNumber;
	if (raise ? hnsw->top_level >= 0 && (!has_entry || meta.entry_level < hnsw->top_level) :
		has_entry && hnsw_has_bit(scan, scan->dead, &entry))
		hnsw_set_entry(index, hnsw->top_level >= 0 ? &hnsw->top : NULL, hnsw->top_level);
	UnlockPage(index, HNSW_INSERTS, ExclusiveLock);
	free_scan(scan);
}

/* begin_walk -- nothing is reached but the entry point. */
static void
begin_walk(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);
	HnswScan   *scan = make_scan(vacuum, number);
	ItemPointerData entry;
	HnswMeta	meta;

	hnsw->stage = HNSW_CONFIRM;
	hnsw->walks++;
	hnsw->passes = 0;
	pg_atomic_write_u64(&hnsw->unconfirmed, 0);
	pg_atomic_write_u64(&hnsw->reached, 0);
	/* and settled, which is behind it */
	memset((void *) scan->reached, 0,
		   set_up_bits(hnsw) - (Size) hnsw->nblocks * hnsw->words_a_block * sizeof(uint64));
	hnsw_read_meta(vacuum->indexes[number], &meta);
	hnsw->has_entry = meta.entry_block != InvalidBlockNumber;
	if (hnsw->has_entry)
	{
		ItemPointerSet(&entry, meta.entry_block, meta.entry_offset);
		(void) hnsw_set_bit(scan, scan->reached, &entry);
	}
	free_scan(scan);
}

/* stage_after_walk -- what comes after repair, a pass of the walk, or links to what it didn't reach? */
static HnswStage
stage_after_walk(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);

	if (hnsw->stage == HNSW_REPAIR)
		return HNSW_CONFIRM;
	if (pg_atomic_read_u64(&hnsw->unconfirmed) > 0)
	{
		if (hnsw->walks < MAX_WALKS)
			return HNSW_CONFIRM;
		/* no link may lead to an element that is marked deleted */
		ereport(WARNING,
				(errmsg("index \"%s\" keeps dead elements, as links still lead to them",
						RelationGetRelationName(vacuum->indexes[number])),
				 errhint("Please REINDEX it.")));
		return HNSW_DONE;
	}
	if (!hnsw->has_entry || hnsw->stage == HNSW_LINK)
		return HNSW_MARK;
	hnsw->passes++;
	return pg_atomic_exchange_u64(&hnsw->reached, 0) > 0 ? HNSW_WALK : HNSW_LINK;
}

/* is_settled -- is there nothing left to do in a block, for the walk? */
static bool
is_settled(KindScan *base, BlockNumber blkno)
{
	HnswScan   *scan = (HnswScan *) base;

	/* blocks that came later are of no concern to it */
	return blkno >= scan->hnsw->nblocks ||
		(pg_atomic_read_u64(&scan->settled[blkno / 64]) & UINT64CONST(1) << (blkno % 64)) != 0;
}

/* hnsw_end -- leader: give back the memory. */
static void
hnsw_end(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);
	dsm_segment *segment;

	if (hnsw->own_bits != NULL)
		pfree(hnsw->own_bits);
	hnsw->own_bits = NULL;
	if (hnsw->handle != DSM_HANDLE_INVALID &&
		(segment = dsm_find_mapping(hnsw->handle)) != NULL)
		dsm_detach(segment);
	hnsw->handle = DSM_HANDLE_INVALID;
}

/* hnsw_conclude -- leader: have insertions use the room of deleted elements. */
static void
hnsw_conclude(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);

	if (hnsw->first_free != InvalidBlockNumber)
		hnsw_set_insert_block(vacuum->indexes[number], hnsw->first_free);
}

/* note_top -- remember the live element with the most layers. */
static void
note_top(HnswScan *scan, int level, BlockNumber blkno, OffsetNumber off)
{
	if (level <= scan->top_level)
		return;
	scan->top_level = level;
	ItemPointerSet(&scan->top, blkno, off);
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
	if (ndead > 0)
		remove_rows(scan, buffer, is_dead, ntids);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		HnswElement *element = hnsw_element_at(page, off);
		ItemPointerData tid;

		if (element == NULL || element->deleted)
			continue;
		if (ItemPointerIsValid(&element->rows[0]))
		{
			note_top(scan, element->level, blkno, off);
			continue;
		}
		ItemPointerSet(&tid, blkno, off);
		(void) hnsw_set_bit(scan, scan->dead, &tid);
		pg_atomic_fetch_add_u64(&scan->hnsw->ndead, 1);
		scan->result.dead++;
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
	BlockNumber blkno = BufferGetBlockNumber(buffer);

	DEBUG_POINT("hnsw-repair");
	if (!hnsw_copy_page(scan, buffer))
		return;
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(scan->page.data); off++)
	{
		HnswElement *element = hnsw_element_at(scan->page.data, off);

		if (hnsw_is_live(element))
			note_top(scan, element->level, blkno, off);
	}
	hnsw_repair_page(scan, blkno);
}

/*
 * visit_for_mark
 *		Mark the dead elements of a pinned page as deleted.
 *
 * A cleanup lock, as pgvector takes one: this process waits only for pages of its own ranges.
 */
static void
visit_for_mark(KindScan *base, Buffer buffer)
{
	HnswScan   *scan = (HnswScan *) base;
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	Page		page = BufferGetPage(buffer);
	bool		has_dead = false;

	DEBUG_POINT("hnsw-mark");
	LockBufferForCleanup(buffer);
	if (PageIsNew(page) || blkno >= scan->hnsw->nblocks)
	{
		UnlockReleaseBuffer(buffer);
		return;
	}
	hnsw_check_page(scan->base.index, buffer);
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		HnswElement *element = hnsw_element_at(page, off);
		ItemPointerData tid;

		ItemPointerSet(&tid, blkno, off);
		if (element == NULL)
			continue;
		has_dead |= hnsw_has_bit(scan, scan->dead, &tid);
		if (element->deleted || hnsw_has_bit(scan, scan->dead, &tid))
			scan->first_free = Min(scan->first_free, blkno);
	}
	if (has_dead)
		mark_elements(scan, buffer);
	UnlockReleaseBuffer(buffer);
}

/*
 * mark_elements
 *		Mark the dead elements of a locked page, with their lists.
 *
 * A list that isn't on its element's page is on a later one, and locked after it, as
 * insertions do.
 */
static void
mark_elements(HnswScan *scan, Buffer buffer)
{
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(BufferGetPage(buffer));
	OffsetNumber off = FirstOffsetNumber;

	while (off <= maxoff)
	{
		GenericXLogState *state = GenericXLogStart(scan->base.index);
		Page		page = GenericXLogRegisterBuffer(state, buffer, 0);
		Buffer		list_buffer = InvalidBuffer;
		bool		changed = false;

		for (; off <= maxoff && !BufferIsValid(list_buffer); off++)
		{
			HnswElement *element = hnsw_element_at(page, off);
			BlockNumber list_block;
			Page		list_page = page;
			ItemPointerData tid;

			ItemPointerSet(&tid, blkno, off);
			if (element == NULL || element->deleted || ItemPointerIsValid(&element->rows[0]) ||
				!hnsw_has_bit(scan, scan->dead, &tid))
				continue;
			list_block = ItemPointerGetBlockNumberNoCheck(&element->list);
			if (list_block != blkno)
			{
				if (list_block < blkno)
					index_report_page(scan->base.index, blkno);
				list_buffer = ReadBuffer(scan->base.index, list_block);
				LockBuffer(list_buffer, BUFFER_LOCK_EXCLUSIVE);
				list_page = GenericXLogRegisterBuffer(state, list_buffer, 0);
			}
			if (!mark_deleted(scan, element, list_page))
				index_report_page(scan->base.index, list_block);
			changed = true;
		}
		if (changed)
			GenericXLogFinish(state);
		else
			GenericXLogAbort(state);
		if (BufferIsValid(list_buffer))
			UnlockReleaseBuffer(list_buffer);
	}
}

/*
 * mark_deleted
 *		Write what pgvector leaves of a deleted element, and of its list; return false if
 *		that isn't there.
 *
 * The version changes, so that a search that remembers the element finds that its list
 * isn't what it was.
 */
static bool
mark_deleted(HnswScan *scan, HnswElement *element, Page list_page)
{
	HnswList   *list = hnsw_list_at(list_page, ItemPointerGetOffsetNumberNoCheck(&element->list));

	if (list == NULL || list->version != element->version ||
		list->count != (element->level + 2) * scan->m)
		return false;
	element->deleted = 1;
	memset(element->vector, 0, VARSIZE_4B(element->vector));
	for (int i = 0; i < list->count; i++)
		ItemPointerSetInvalid(&list->links[i]);
	element->version = element->version >= 15 ? 1 : element->version + 1;
	list->version = element->version;
	return true;
}
