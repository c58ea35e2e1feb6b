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
#include "team/attempt.h"

/* the walk is begun anew at most this many times, and links are confirmed as often */
#define MAX_WALKS	3

static void hnsw_setup(TableVacuum *vacuum, int number);
static void hnsw_begin(TableVacuum *vacuum, int number, int nmembers);
static Size bits_size(const HnswShared *hnsw);
static uint32 words_a_block(int m);
static void take_bits(HnswShared *hnsw, bool is_shared);
static void hnsw_work(TableVacuum *vacuum, int number);
static bool hnsw_is_done(TableVacuum *vacuum, int number);
static void hnsw_next_stage(TableVacuum *vacuum, int number);
static void hnsw_more_work(TableVacuum *vacuum, int number);
static void hnsw_end(TableVacuum *vacuum, int number);
static void hnsw_conclude(TableVacuum *vacuum, int number);
static HnswScan *make_scan(TableVacuum *vacuum, int number);
static void free_scan(HnswScan *scan);
static bool find_bits(HnswScan *scan);
static void replace_dead_entry(TableVacuum *vacuum, int number);
static void raise_entry(TableVacuum *vacuum, int number);
static void begin_walk(TableVacuum *vacuum, int number);
static HnswStage stage_after_walk(TableVacuum *vacuum, int number);
static bool is_settled(KindScan *base, BlockNumber blkno);
static void note_top(HnswScan *scan, int level, BlockNumber blkno, OffsetNumber off);
static void visit_for_remove(KindScan *base, Buffer buffer);
static void remove_rows(HnswScan *scan, Buffer buffer, int ntids);
static void visit_for_repair(KindScan *base, Buffer buffer);
static void visit_for_mark(KindScan *base, Buffer buffer);
static void mark_elements(HnswScan *scan, Buffer buffer);
static void mark_deleted(HnswElement *element, HnswList *list);

const IndexKind hnsw_kind = {
	.name = "hnsw",
	.shared_size = sizeof(HnswShared),
	.setup = hnsw_setup,
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

/* hnsw_setup -- initialize what is shared of an index. */
static void
hnsw_setup(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);

	pg_atomic_init_u64(&hnsw->ndead, 0);
	pg_atomic_init_u64(&hnsw->unconfirmed, 0);
	pg_atomic_init_u64(&hnsw->reached, 0);
	pg_atomic_init_u32(&hnsw->first_free, InvalidBlockNumber);
}

/* hnsw_begin -- make an index's blocks available to take out TIDs. */
static void
hnsw_begin(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	HnswShared *hnsw = index_area(vacuum, number);
	HnswMeta	meta;

	Assert(is_leader(vacuum));
	hnsw_read_meta(vacuum->indexes[number], &meta);
	index_begin_blocks(vacuum, number, HNSW_FIRST_BLOCK, nmembers);
	shared->stats.estimated_count = false;
	shared->stats.num_index_tuples = 0;

	hnsw->stage = HNSW_REMOVE;
	hnsw->rows_are_removed = false;
	hnsw->m = meta.m;
	hnsw->nmembers = nmembers;
	hnsw->nblocks = shared->ranges.end;
	hnsw->words_a_block = words_a_block(meta.m);
	hnsw->walks = 0;
	hnsw->top_level = -1;
	pg_atomic_write_u64(&hnsw->ndead, 0);
	pg_atomic_write_u32(&hnsw->first_free, InvalidBlockNumber);
	take_bits(hnsw, nmembers > 1);
}

/*
 * words_a_block
 *		How many words have a bit for each item that a page may have?
 *
 * An element's list is on its page if both fit on one, and each has a line pointer.
 */
static uint32
words_a_block(int m)
{
	Size		element = MAXALIGN(HNSW_VECTOR_AT + VARHDRSZ) + sizeof(ItemIdData);
	Size		list = MAXALIGN(HNSW_LINKS_AT + 2 * m * sizeof(ItemPointerData)) + sizeof(ItemIdData);

	return 2 * (BLCKSZ / (element + list)) / 64 + 1;
}

/* bits_size -- how many bytes the three sets take. */
static Size
bits_size(const HnswShared *hnsw)
{
	Size		words = mul_size(hnsw->nblocks, hnsw->words_a_block);

	return mul_size(add_size(mul_size(2, words), hnsw->nblocks / 64 + 1), sizeof(uint64));
}

/* take_bits -- take memory for them, and clear it; if it can't be shared the leader does without the others. */
static void
take_bits(HnswShared *hnsw, bool is_shared)
{
	Size		size = bits_size(hnsw);
	dsm_segment *segment = NULL;
	char	   *failure = NULL;

	hnsw->handle = DSM_HANDLE_INVALID;
	hnsw->own_bits = NULL;
	if (is_shared)
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

/* find_bits -- find them in this process; return false if it can't have them. */
static bool
find_bits(HnswScan *scan)
{
	HnswShared *hnsw = scan->hnsw;
	char	   *bits = hnsw->own_bits;
	char	   *failure = NULL;
	Size		words = (Size) hnsw->nblocks * hnsw->words_a_block;

	if (hnsw->handle != DSM_HANDLE_INVALID)
	{
		dsm_segment *segment = dsm_find_mapping(hnsw->handle);

		if (segment == NULL)
			segment = scan->segment = attempt_attach_segment(hnsw->handle, &failure);
		if (segment == NULL)
			return false;
		bits = dsm_segment_address(segment);
	}
	else if (!is_leader(scan->base.vacuum))
		return false;
	scan->dead = (HnswBits) bits;
	scan->reached = scan->dead + words;
	scan->settled = scan->reached + words;
	return true;
}

/* make_scan -- make what a process needs in one index; NULL if it can't have that. */
static HnswScan *
make_scan(TableVacuum *vacuum, int number)
{
	HnswScan   *scan = kind_scan_make(vacuum, number, sizeof(HnswScan));
	Relation	index = scan->base.index;
	HnswMeta	meta;

	scan->hnsw = index_area(vacuum, number);
	if (!find_bits(scan))
	{
		kind_scan_free(&scan->base);
		return NULL;
	}
	hnsw_read_meta(index, &meta);
	scan->m = scan->hnsw->m;
	scan->ef = Max(meta.ef_construction, 2 * scan->m);
	scan->max_nodes = 4 * scan->ef;
	scan->distance = index_getprocinfo(index, 1, 1);
	scan->collation = index->rd_indcollation[0];
	scan->top_level = -1;
	scan->first_free = InvalidBlockNumber;
	scan->page_context = AllocSetContextCreate(CurrentMemoryContext, "pg_cyclone HNSW page",
											   ALLOCSET_DEFAULT_SIZES);
	scan->element_context = AllocSetContextCreate(CurrentMemoryContext, "pg_cyclone HNSW element",
												  0, 256 * 1024, 1024 * 1024);
	scan->seen = followed_create(CurrentMemoryContext, 4 * scan->ef, NULL);
	scan->visited = followed_create(CurrentMemoryContext, 8 * scan->ef, NULL);
	scan->nodes = palloc_array(HnswNode, scan->max_nodes + 1);
	scan->tids = palloc_array(ItemPointerData, HNSW_ROWS * 64 * scan->hnsw->words_a_block);
	scan->tid_is_dead = palloc_array(bool, HNSW_ROWS * 64 * scan->hnsw->words_a_block);
	return scan;
}

/* free_scan -- tell what was done, and free it. */
static void
free_scan(HnswScan *scan)
{
	HnswShared *hnsw = scan->hnsw;
	IndexShared *shared = scan->base.shared;
	uint32		first_free = pg_atomic_read_u32(&hnsw->first_free);

	SpinLockAcquire(&shared->mutex);
	if (scan->top_level > hnsw->top_level)
	{
		hnsw->top_level = scan->top_level;
		hnsw->top = scan->top;
	}
	shared->graph.dead += scan->result.dead;
	shared->graph.repaired += scan->result.repaired;
	shared->graph.searched += scan->result.searched;
	shared->graph.linked += scan->result.linked;
	SpinLockRelease(&shared->mutex);
	while (scan->first_free < first_free &&
		   !pg_atomic_compare_exchange_u32(&hnsw->first_free, &first_free, scan->first_free))
		;

	MemoryContextDelete(scan->page_context);
	MemoryContextDelete(scan->element_context);
	followed_destroy(scan->seen);
	followed_destroy(scan->visited);
	pfree(scan->nodes);
	pfree(scan->tids);
	pfree(scan->tid_is_dead);
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
	switch (hnsw->stage)
	{
		case HNSW_REMOVE:
			/* in the failsafe not all may have been passed over */
			hnsw->rows_are_removed = index_blocks_are_claimed(vacuum, number);
			if (!hnsw->rows_are_removed || pg_atomic_read_u64(&hnsw->ndead) == 0)
			{
				hnsw->stage = HNSW_DONE;
				return;
			}
			replace_dead_entry(vacuum, number);
			hnsw->stage = HNSW_REPAIR;
			break;
		case HNSW_REPAIR:
			raise_entry(vacuum, number);
			begin_walk(vacuum, number);
			break;
		case HNSW_CONFIRM:
		case HNSW_WALK:
		case HNSW_LINK:
			hnsw->stage = stage_after_walk(vacuum, number);
			if (hnsw->stage == HNSW_CONFIRM)
				begin_walk(vacuum, number);
			if (hnsw->stage != HNSW_MARK)
				break;
			/* searches that have begun may still come to dead elements */
			LockPage(vacuum->indexes[number], HNSW_SEARCHES, ExclusiveLock);
			UnlockPage(vacuum->indexes[number], HNSW_SEARCHES, ExclusiveLock);
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
 * replace_dead_entry
 *		Wait until insertions are through that may not have seen which elements are dead,
 *		and have another entry point if it is one of them.
 */
static void
replace_dead_entry(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);
	HnswScan   *scan = make_scan(vacuum, number);
	Relation	index = vacuum->indexes[number];
	ItemPointerData entry;
	HnswMeta	meta;

	LockPage(index, HNSW_INSERTS, ExclusiveLock);
	hnsw_read_meta(index, &meta);
	if (meta.entry_block != InvalidBlockNumber)
	{
		ItemPointerSet(&entry, meta.entry_block, meta.entry_offset);
		if (hnsw_has_bit(scan, scan->dead, &entry))
			hnsw_set_entry(index, hnsw->top_level >= 0 ? &hnsw->top : NULL, hnsw->top_level);
	}
	UnlockPage(index, HNSW_INSERTS, ExclusiveLock);
	free_scan(scan);
}

/*
 * raise_entry
 *		Wait until insertions are through that may have come by dead elements, and have
 *		the highest element as entry point.
 */
static void
raise_entry(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);
	Relation	index = vacuum->indexes[number];
	HnswMeta	meta;

	LockPage(index, HNSW_INSERTS, ExclusiveLock);
	hnsw_read_meta(index, &meta);
	if (hnsw->top_level >= 0 &&
		(meta.entry_block == InvalidBlockNumber || meta.entry_level < hnsw->top_level))
		hnsw_set_entry(index, &hnsw->top, hnsw->top_level);
	UnlockPage(index, HNSW_INSERTS, ExclusiveLock);
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
	pg_atomic_write_u64(&hnsw->unconfirmed, 0);
	pg_atomic_write_u64(&hnsw->reached, 0);
	/* in one piece, to the end */
	memset((void *) scan->reached, 0,
		   bits_size(hnsw) - (Size) hnsw->nblocks * hnsw->words_a_block * sizeof(uint64));
	hnsw_read_meta(vacuum->indexes[number], &meta);
	hnsw->has_entry = meta.entry_block != InvalidBlockNumber;
	if (hnsw->has_entry)
	{
		ItemPointerSet(&entry, meta.entry_block, meta.entry_offset);
		(void) hnsw_set_bit(scan, scan->reached, &entry);
	}
	free_scan(scan);
}

/*
 * stage_after_walk
 *		What comes after a pass of the walk, or after links to what it didn't reach?
 */
static HnswStage
stage_after_walk(TableVacuum *vacuum, int number)
{
	HnswShared *hnsw = index_area(vacuum, number);
	bool		again = hnsw->walks < MAX_WALKS;

	if (pg_atomic_read_u64(&hnsw->unconfirmed) > 0)
	{
		if (again)
			return HNSW_CONFIRM;
		/* no link may lead to an element that is marked deleted */
		ereport(WARNING,
				(errmsg("index \"%s\" keeps dead elements, as links still lead to them",
						RelationGetRelationName(vacuum->indexes[number])),
				 errhint("Please REINDEX it.")));
		return HNSW_DONE;
	}
	if (!hnsw->has_entry)
		return HNSW_MARK;
	if (hnsw->stage == HNSW_LINK)
		return HNSW_MARK;
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
	BlockNumber first_free = pg_atomic_read_u32(&hnsw->first_free);

	if (first_free != InvalidBlockNumber)
		hnsw_set_insert_block(vacuum->indexes[number], first_free);
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
		HnswElement *element = hnsw_live_element_at(page, off);

		for (int i = 0; element != NULL && i < HNSW_ROWS && ItemPointerIsValid(&element->rows[i]); i++)
			scan->tids[ntids++] = element->rows[i];
	}
	ndead = dead_tids_match(scan->base.vacuum->dead_tids, scan->tids, ntids, scan->tid_is_dead);
	scan->base.stats.tuples_removed += ndead;
	scan->base.stats.num_index_tuples += ntids - ndead;
	if (ndead > 0)
		remove_rows(scan, buffer, ntids);

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
remove_rows(HnswScan *scan, Buffer buffer, int ntids)
{
	GenericXLogState *state = GenericXLogStart(scan->base.index);
	Page		page = GenericXLogRegisterBuffer(state, buffer, 0);
	int			next = 0;

	for (OffsetNumber off = FirstOffsetNumber; next < ntids; off++)
	{
		HnswElement *element = hnsw_live_element_at(page, off);
		int			nkept = 0;

		if (element == NULL)
			continue;
		for (int i = 0; i < HNSW_ROWS; i++)
		{
			if (!ItemPointerIsValid(&element->rows[i]))
				break;
			if (!scan->tid_is_dead[next++])
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
		HnswElement *element = hnsw_live_element_at(scan->page.data, off);

		if (element != NULL)
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
			HnswList   *list;
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
			list = hnsw_list_at(list_page, ItemPointerGetOffsetNumberNoCheck(&element->list));
			if (list == NULL || list->version != element->version ||
				list->count != (element->level + 2) * scan->m)
				index_report_page(scan->base.index, list_block);
			mark_deleted(element, list);
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
 *		Write what pgvector leaves of a deleted element.
 *
 * Its version changes, so that a search that remembers it finds that its list isn't what
 * it was.
 */
static void
mark_deleted(HnswElement *element, HnswList *list)
{
	element->deleted = 1;
	memset(element->vector, 0, VARSIZE_4B(element->vector));
	for (int i = 0; i < list->count; i++)
		ItemPointerSetInvalid(&list->links[i]);
	element->version = element->version >= 15 ? 1 : element->version + 1;
	list->version = element->version;
}
