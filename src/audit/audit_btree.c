/*-------------------------------------------------------------------------
 *
 * audit_btree.c
 *	  Pages of btrees, judged a second time: see audit.c.
 *
 * A page is looked at twice:
 *
 * - When it is visited, before and after it is changed, under the visitor's lock:
 *	 each TID is searched for in the store by itself (audit_match), and the TIDs that
 *	 are left must be those that were there without the dead ones, in the same order
 *	 (audit_deleted).
 * - When all indexes have been passed over, in a phase of its own, in sections of adjacent
 *	 blocks: is an entry of a dead item left?  Nobody can make one any more, wherever its
 *	 page was split, and whichever member had to visit it.  A section is chosen by a hash of
 *	 its place and of a number that the leader has drawn, so the leader can tell at once if
 *	 there are any.  These pages are read for nothing else, so their share is half of that
 *	 of visited pages, unless that is all.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "debug_point.h"
#include "audit/audit.h"
#include "engine/index/index_kind.h"
#include "pace/pace.h"
#include "report/progress.h"

/* A member claims a section of this number of blocks (128 kB) at a time. */
#define SECTION_BLOCKS		16

static int	misjudge(bool is_dead, int ntids, bool *dead);
static void compare_dead_entries(TableVacuum *vacuum, Relation index, Buffer buffer, const bool *dead);
static void fail_btree_page(TableVacuum *vacuum, Relation index, Buffer buffer,
							const char *engine, const char *audit);
static char *describe_entry(const ItemPointerData *tid, const char *what);
static uint32 count_sections(const IndexShared *index);
static bool is_section_chosen(const TableVacuum *vacuum, int number, uint32 section);
static void audit_section(TableVacuum *vacuum, int number, BlockNumber start, BlockNumber end);
static void audit_leaf(TableVacuum *vacuum, Relation index, BlockNumber blkno);
static void add_tids(AuditTids *tids, Relation index, BlockNumber blkno, const ItemPointerData *more,
					 int nmore);

/*
 * audit_match
 *		Which of the TIDs of a locked page are dead?  Return how many, and which in dead.
 *
 * That is dead_tids_match, with a second opinion on audited pages.  The caller
 * passes all TIDs of the page, in its order.  It calls audit_deleted when they are
 * deleted.
 */
int
audit_match(TableVacuum *vacuum, Relation index, Buffer buffer,
			const ItemPointerData *tids, int ntids, bool *dead)
{
	int			ndead = dead_tids_match(vacuum->dead_tids, tids, ntids, dead);
	BtreeAudit *audit = vacuum->btree_audit;

	Assert(CritSectionCount == 0 && compat_buffer_is_locked_exclusively(buffer));
	if (DEBUG_FAULT("index-entry"))
		ndead -= misjudge(true, ntids, dead);
	if (DEBUG_FAULT("index-live"))
		ndead += misjudge(false, ntids, dead);

	audit->has_before = audit_is_due();
	if (likely(!audit->has_before))
		return ndead;

	audit_btree_tids(&audit->before, index, BufferGetPage(buffer), BufferGetBlockNumber(buffer));
	if (audit->before.ntids != ntids ||
		memcmp(audit->before.tids, tids, ntids * sizeof(ItemPointerData)) != 0)
		fail_btree_page(vacuum, index, buffer, psprintf("the page has %d TIDs", ntids),
						psprintf("it has %d, or others", audit->before.ntids));
	dead_tids_search(vacuum->dead_tids, audit->before.tids, ntids, audit->dead);
	compare_dead_entries(vacuum, index, buffer, dead);
	vacuum->counters.audited_index_pages++;
	if (DEBUG_FAULT("index-stays"))
		ndead -= misjudge(true, ntids, dead);
	return ndead;
}

/* compare_dead_entries -- are the entries dead that are about to go? */
static void
compare_dead_entries(TableVacuum *vacuum, Relation index, Buffer buffer, const bool *dead)
{
	const BtreeAudit *audit = vacuum->btree_audit;
	int			i = 0;

	if (memcmp(audit->dead, dead, audit->before.ntids * sizeof(bool)) == 0)
		return;
	while (audit->dead[i] == dead[i])
		i++;
	fail_btree_page(vacuum, index, buffer,
					describe_entry(&audit->before.tids[i], dead[i] ? "goes" : "stays"),
					dead[i] ? "its row isn't dead" : "its row is dead");
}

/* misjudge -- for tests: misjudge the last TID that is (not) dead; returns 0 if there is none, else 1. */
static int
misjudge(bool is_dead, int ntids, bool *dead)
{
	int			last = ntids - 1;

	while (last >= 0 && dead[last] != is_dead)
		last--;
	if (last >= 0)
		dead[last] = !is_dead;
	return last >= 0;
}

/*
 * audit_deleted
 *		The dead TIDs of a locked page have been deleted: if the page is audited, are
 *		all others left?
 */
void
audit_deleted(TableVacuum *vacuum, Relation index, Buffer buffer)
{
	BtreeAudit *audit = vacuum->btree_audit;
	AuditTids  *before = &audit->before;
	int			nleft = 0;

	Assert(CritSectionCount == 0 && compat_buffer_is_locked_exclusively(buffer));
	if (!audit->has_before)
		return;
	audit->has_before = false;
	audit_btree_tids(&audit->now, index, BufferGetPage(buffer), BufferGetBlockNumber(buffer));
	for (int i = 0; i < before->ntids; i++)
		if (!audit->dead[i])
			before->tids[nleft++] = before->tids[i];
	if (nleft != audit->now.ntids ||
		memcmp(before->tids, audit->now.tids, nleft * sizeof(ItemPointerData)) != 0)
		fail_btree_page(vacuum, index, buffer,
						psprintf("%d TIDs are left on the page, in this order", audit->now.ntids),
						psprintf("there should be %d, in the order that they had", nleft));
}

/* fail_btree_page -- there are two verdicts on a locked page. */
static void
fail_btree_page(TableVacuum *vacuum, Relation index, Buffer buffer, const char *engine,
				const char *audit)
{
	AuditPlace	place = {.rel = index,.buffer = buffer,.blkno = BufferGetBlockNumber(buffer)};

	audit_fail(vacuum, &place, engine, audit);
}

/* describe_entry -- what happens to an entry; palloc'd. */
static char *
describe_entry(const ItemPointerData *tid, const char *what)
{
	return psprintf("the entry of row (%u,%u) %s", ItemPointerGetBlockNumberNoCheck(tid),
					ItemPointerGetOffsetNumberNoCheck(tid), what);
}

/*
 * audit_begin_indexes
 *		Leader, when all indexes have been passed over: choose the sections to be looked
 *		at, and return whether there are any.
 */
bool
audit_begin_indexes(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;
	bool		any = false;

	Assert(is_leader(vacuum));
	Assert(vacuum->dead_tids != NULL && vacuum->kinds != NULL);

	if (cyclone_audit <= 0)
		return false;
	pg_atomic_write_u64(&shared->audit_next, 0);
	shared->audit_seed = pg_prng_uint64(&pg_global_prng_state);
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		IndexShared *index = vacuum_index(shared, i);
		bool		is_btree = vacuum->indexes[i]->rd_indam->ambulkdelete == btbulkdelete;
		bool		is_audited = is_btree ? vacuum->kinds[i] != NULL : vacuum->kinds[i] == &hnsw_kind;

		index->audit_blocks = is_audited ? index_current_size(vacuum->indexes[i]) : 0;
		for (uint32 section = 0; !any && section < count_sections(index); section++)
			any = is_section_chosen(vacuum, i, section);
	}
	return any;
}

/*
 * audit_indexes
 *		A member's part of the second look.
 */
void
audit_indexes(TableVacuum *vacuum)
{
	VacuumShared *shared = vacuum->shared;

	Assert(CritSectionCount == 0);
	Assert(vacuum->dead_tids != NULL);
	Assert(vacuum->indname == NULL && vacuum->place == PLACE_UNKNOWN);
	progress_phase(PROGRESS_VACUUM_PHASE_VACUUM_INDEX, 0);
	while (!VacuumFailsafeActive && !pace_give_place())
	{
		uint64		section = pg_atomic_fetch_add_u64(&shared->audit_next, 1);
		BlockNumber start,
					end;
		int			number = 0;

		while (number < vacuum->nindexes && section >= count_sections(vacuum_index(shared, number)))
			section -= count_sections(vacuum_index(shared, number++));
		if (number == vacuum->nindexes)
			break;
		if (!is_section_chosen(vacuum, number, section))
			continue;
		start = section * SECTION_BLOCKS;
		end = vacuum_index(shared, number)->audit_blocks;
		vacuum->indname = RelationGetRelationName(vacuum->indexes[number]);
		set_place(vacuum, PLACE_INDEX_VACUUM, InvalidBlockNumber);
		audit_section(vacuum, number, start, end - start > SECTION_BLOCKS ? start + SECTION_BLOCKS : end);
		set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
		vacuum->indname = NULL;
	}
}

/* count_sections -- how many sections an index has. */
static uint32
count_sections(const IndexShared *index)
{
	return index->audit_blocks / SECTION_BLOCKS + (index->audit_blocks % SECTION_BLOCKS != 0);
}

/* is_section_chosen -- is a section of an index looked at in this round? */
static bool
is_section_chosen(const TableVacuum *vacuum, int number, uint32 section)
{
	uint64		place = (uint64) number << 32 | section;
	uint32		hash = (uint32) murmurhash64(vacuum->shared->audit_seed ^ murmurhash64(place));
	double		share = cyclone_audit < 1 ? cyclone_audit / 2 : 1;

	return hash < share * ((double) PG_UINT32_MAX + 1);
}

/* audit_section -- look at the blocks of a section. */
static void
audit_section(TableVacuum *vacuum, int number, BlockNumber start, BlockNumber end)
{
	Relation	index = vacuum->indexes[number];

	Assert(start < end);
	for (BlockNumber blkno = start; blkno < end; blkno++)
	{
		before_index_read(vacuum, number, blkno);
		(void) PrefetchBuffer(index, MAIN_FORKNUM, blkno);
	}
	for (BlockNumber blkno = start; blkno < end; blkno++)
	{
		delay_point();
		failsafe_notice(vacuum);
		if (vacuum->kinds[number] == &hnsw_kind)
			audit_hnsw_page(vacuum, number, blkno);
		else
			audit_leaf(vacuum, index, blkno);
	}
}

/* audit_leaf -- has a page an entry of a dead item? */
static void
audit_leaf(TableVacuum *vacuum, Relation index, BlockNumber blkno)
{
	BtreeAudit *audit = vacuum->btree_audit;
	Buffer		buffer = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL,
											vacuum_strategy(vacuum));
	PGAlignedBlock copy;
	AuditPlace	place = {.rel = index,.page = (Page) copy.data,.blkno = blkno};
	int			first = 0;
	int			ndead;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	audit_btree_tids(&audit->now, index, BufferGetPage(buffer), blkno);
	ndead = dead_tids_match(vacuum->dead_tids, audit->now.tids, audit->now.ntids, audit->dead);
	if (ndead > 0)
		memcpy(place.page, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	vacuum->counters.audited_index_pages++;
	if (ndead == 0)
		return;

	while (!audit->dead[first])
		first++;
	audit_fail(vacuum, &place, "all entries of dead rows are gone",
			   describe_entry(&audit->now.tids[first], "is still there"));
}

/*
 * audit_btree_tids
 *		Read the TIDs of a page of a btree, in its order, by other code than the engine's;
 *		none if it is no leaf.  Damage is an error.
 */
void
audit_btree_tids(AuditTids *tids, Relation index, Page page, BlockNumber blkno)
{
	BTPageOpaque opaque;

	tids->ntids = 0;
	if (PageIsNew(page) || blkno == BTREE_METAPAGE)
		return;
	/* the special space says what kind of page it is */
	if (PageGetSpecialSize(page) != MAXALIGN(sizeof(BTPageOpaqueData)))
		index_report_page(index, blkno);
	opaque = BTPageGetOpaque(page);
	if (!P_ISLEAF(opaque) || P_IGNORE(opaque))
		return;
	for (OffsetNumber off = P_FIRSTDATAKEY(opaque); off <= PageGetMaxOffsetNumber(page); off++)
	{
		IndexTuple	tuple = index_whole_tuple_at(index, blkno, page, off);

		if (!BTreeTupleIsPosting(tuple))
			add_tids(tids, index, blkno, &tuple->t_tid, 1);
		else if (BTreeTupleGetPostingOffset(tuple) +
				 BTreeTupleGetNPosting(tuple) * sizeof(ItemPointerData) > IndexTupleSize(tuple) ||
				 ItemIdGetLength(PageGetItemId(page, off)) < IndexTupleSize(tuple))
			index_report_item(index, blkno, PageGetItemId(page, off));
		else
			add_tids(tids, index, blkno, BTreeTupleGetPosting(tuple), BTreeTupleGetNPosting(tuple));
	}
}

/* add_tids -- add some; items of a damaged page may overlap, so there may be too many. */
static void
add_tids(AuditTids *tids, Relation index, BlockNumber blkno, const ItemPointerData *more,
		 int nmore)
{
	if (nmore > AUDIT_MAX_TIDS - tids->ntids)
		index_report_page(index, blkno);
	memcpy(&tids->tids[tids->ntids], more, nmore * sizeof(ItemPointerData));
	tids->ntids += nmore;
}
