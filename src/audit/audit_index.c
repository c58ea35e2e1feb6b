/*-------------------------------------------------------------------------
 *
 * audit_index.c
 *	  Pages of indexes, judged a second time: see audit.c.
 *
 * A page is looked at twice:
 *
 * - When it is visited, before and after it is changed, under the visitor's lock:
 *	 each TID is searched for in the store by itself (audit_match), and the TIDs that
 *	 are left must be those that were there without the dead ones, in the same order
 *	 (audit_deleted).  SP-GiST changes the order, so there only their number is compared.
 *	 A page of a hash index that loses other entries, too, after a split, has the first
 *	 half of this only.
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

#include "access/spgist_private.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "debug_point.h"
#include "audit/audit.h"
#include "engine/index/index_kind.h"
#include "pace/pace.h"
#include "report/progress.h"

/* A section is this number of blocks (128 kB); a member claims several at a time. */
#define SECTION_BLOCKS		16
#define SECTIONS_A_CLAIM	64

/* The page in hand */
struct IndexAudit
{
	AuditTids	now;
	AuditTids	before;			/* its change, if has_before */
	bool		has_before;
	bool		dead[AUDIT_MAX_TIDS];
};

static int	misjudge(bool is_dead, int ntids, bool *dead);
static void compare_dead_entries(TableVacuum *vacuum, int number, Buffer buffer, const bool *dead);
static int	count_left(const struct IndexAudit *audit, bool in_order, bool *is_left);
static struct IndexAudit *index_audit(TableVacuum *vacuum);
static void fail_index_page(TableVacuum *vacuum, int number, Buffer buffer,
							const char *engine, const char *audit);
static char *describe_entry(const ItemPointerData *tid, const char *what);
static uint64 count_claims(const IndexShared *index);
static bool is_section_chosen(const TableVacuum *vacuum, int number, uint64 section);
static void audit_index_section(TableVacuum *vacuum, int number, BlockNumber start, BlockNumber end);
static void audit_index_page(TableVacuum *vacuum, int number, BlockNumber blkno);

/*
 * audit_match
 *		Which of the TIDs of a locked page are dead?  Return how many, and which in dead.
 *
 * That is dead_tids_match, with a second opinion on audited pages.  The caller
 * passes all TIDs of the page, in its order.  It calls audit_deleted when they are
 * deleted, if it has deleted nothing else.
 */
int
audit_match(TableVacuum *vacuum, int number, Buffer buffer,
			const ItemPointerData *tids, int ntids, bool *dead)
{
	int			ndead = dead_tids_match(vacuum->dead_tids, tids, ntids, dead);
	struct IndexAudit *audit = vacuum->index_audit;

	Assert(number >= 0 && number < vacuum->nindexes);
	Assert(CritSectionCount == 0 && compat_buffer_is_locked_exclusively(buffer));
	if (DEBUG_FAULT("index-entry"))
		ndead -= misjudge(true, ntids, dead);
	if (DEBUG_FAULT("index-live"))
		ndead += misjudge(false, ntids, dead);

	if (audit != NULL)
		audit->has_before = false;
	if (likely(!audit_is_due()))
		return ndead;

	audit = index_audit(vacuum);
	audit_tids_read(&audit->before, vacuum->indexes[number], BufferGetPage(buffer),
					BufferGetBlockNumber(buffer));
	if (audit->before.ntids != ntids ||
		memcmp(audit->before.tids, tids, ntids * sizeof(ItemPointerData)) != 0)
		fail_index_page(vacuum, number, buffer, psprintf("the page has %d TIDs", ntids),
						psprintf("it has %d, or others", audit->before.ntids));
	dead_tids_search(vacuum->dead_tids, audit->before.tids, ntids, audit->dead);
	compare_dead_entries(vacuum, number, buffer, dead);
	audit->has_before = true;
	vacuum->counters.audited_index_pages++;
	if (DEBUG_FAULT("index-stays"))
		ndead -= misjudge(true, ntids, dead);
	return ndead;
}

/* compare_dead_entries -- are the entries dead that are about to go? */
static void
compare_dead_entries(TableVacuum *vacuum, int number, Buffer buffer, const bool *dead)
{
	const struct IndexAudit *audit = vacuum->index_audit;
	int			i = 0;

	if (memcmp(audit->dead, dead, audit->before.ntids * sizeof(bool)) == 0)
		return;
	while (audit->dead[i] == dead[i])
		i++;
	fail_index_page(vacuum, number, buffer,
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
audit_deleted(TableVacuum *vacuum, int number, Buffer buffer)
{
	struct IndexAudit *audit = vacuum->index_audit;
	Relation	index = vacuum->indexes[number];
	bool		is_left;
	int			nleft;

	Assert(number >= 0 && number < vacuum->nindexes);
	Assert(CritSectionCount == 0 && compat_buffer_is_locked_exclusively(buffer));
	if (audit == NULL || !audit->has_before)
		return;
	audit->has_before = false;
	audit_tids_read(&audit->now, index, BufferGetPage(buffer), BufferGetBlockNumber(buffer));
	nleft = count_left(audit, index->rd_indam->ambulkdelete != spgbulkdelete, &is_left);
	if (nleft != audit->now.ntids || !is_left)
		fail_index_page(vacuum, number, buffer,
						psprintf("%d TIDs are left on the page, in this order", audit->now.ntids),
						psprintf("there should be %d, in the order that they had", nleft));
}

/*
 * count_left
 *		How many TIDs should be left of those before, without the dead?  Are these
 *		the ones on the page, if they keep their order?
 *
 * They are compared by runs between dead ones.
 */
static int
count_left(const struct IndexAudit *audit, bool in_order, bool *is_left)
{
	const AuditTids *before = &audit->before;
	int			nleft = 0;
	int			end;

	*is_left = true;
	for (int start = 0; start < before->ntids; start = end + 1)
	{
		const bool *dead = &audit->dead[start];

		end = start;
		if (*dead)
			continue;
		dead = memchr(dead, true, before->ntids - start);
		end = dead != NULL ? dead - audit->dead : before->ntids;
		if (nleft + end - start > audit->now.ntids ||
			(in_order && memcmp(&audit->now.tids[nleft], &before->tids[start],
								(end - start) * sizeof(ItemPointerData)) != 0))
			*is_left = false;
		nleft += end - start;
	}
	return nleft;
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

		index->audit_blocks = vacuum->kinds[i] != NULL && audit_tids_are_known(vacuum->indexes[i]) ?
			index_current_size(vacuum->indexes[i]) : 0;
		for (uint64 section = 0; !any && section * SECTION_BLOCKS < index->audit_blocks; section++)
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
	uint64		claim;

	Assert(CritSectionCount == 0);
	Assert(vacuum->dead_tids != NULL);
	Assert(vacuum->indname == NULL && vacuum->place == PLACE_UNKNOWN);
	progress_phase(PROGRESS_VACUUM_PHASE_VACUUM_INDEX, 0);
	while (!VacuumFailsafeActive && !pace_give_place())
	{
		int			number = 0;
		uint64		first;

		claim = pg_atomic_fetch_add_u64(&shared->audit_next, 1);
		while (number < vacuum->nindexes && claim >= count_claims(vacuum_index(shared, number)))
			claim -= count_claims(vacuum_index(shared, number++));
		if (number == vacuum->nindexes)
			break;

		vacuum->indname = RelationGetRelationName(vacuum->indexes[number]);
		set_place(vacuum, PLACE_INDEX_VACUUM, InvalidBlockNumber);
		first = claim * SECTIONS_A_CLAIM;
		for (uint64 section = first; section < first + SECTIONS_A_CLAIM; section++)
		{
			uint64		start = section * SECTION_BLOCKS;
			BlockNumber end = vacuum_index(shared, number)->audit_blocks;

			if (start < end && is_section_chosen(vacuum, number, section))
				audit_index_section(vacuum, number, start, Min(start + SECTION_BLOCKS, end));
		}
		set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
		vacuum->indname = NULL;
	}
}

/* count_claims -- how many claims there are on an index. */
static uint64
count_claims(const IndexShared *index)
{
	const uint64 blocks = SECTION_BLOCKS * SECTIONS_A_CLAIM;

	return (index->audit_blocks + blocks - 1) / blocks;
}

/* is_section_chosen -- is a section of an index looked at in this round? */
static bool
is_section_chosen(const TableVacuum *vacuum, int number, uint64 section)
{
	uint64		place = (uint64) number << 32 | section;
	uint32		hash = (uint32) murmurhash64(vacuum->shared->audit_seed ^ murmurhash64(place));
	double		share = cyclone_audit < 1 ? cyclone_audit / 2 : 1;

	return hash < share * ((double) PG_UINT32_MAX + 1);
}

/* audit_index_section -- look at the blocks of a section. */
static void
audit_index_section(TableVacuum *vacuum, int number, BlockNumber start, BlockNumber end)
{
	for (BlockNumber blkno = start; blkno < end; blkno++)
	{
		before_index_read(vacuum, number, blkno);
		(void) PrefetchBuffer(vacuum->indexes[number], MAIN_FORKNUM, blkno);
	}
	for (BlockNumber blkno = start; blkno < end; blkno++)
	{
		delay_point();
		failsafe_notice(vacuum);
		audit_index_page(vacuum, number, blkno);
	}
}

/* audit_index_page -- has a page an entry of a dead item? */
static void
audit_index_page(TableVacuum *vacuum, int number, BlockNumber blkno)
{
	struct IndexAudit *audit = index_audit(vacuum);
	Relation	index = vacuum->indexes[number];
	Buffer		buffer = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL,
											vacuum_strategy(vacuum));
	PGAlignedBlock copy;
	AuditPlace	place = {.rel = index,.page = (Page) copy.data,.blkno = blkno};
	int			first = 0;
	int			ndead;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	audit_tids_read(&audit->now, index, BufferGetPage(buffer), blkno);
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

/* index_audit -- what this process has for the page in hand, made when first needed. */
static struct IndexAudit *
index_audit(TableVacuum *vacuum)
{
	if (vacuum->index_audit == NULL)
		vacuum->index_audit = MemoryContextAllocZero(vacuum->audit_context,
													 sizeof(struct IndexAudit));
	return vacuum->index_audit;
}

/* fail_index_page -- there are two verdicts on a locked page. */
static void
fail_index_page(TableVacuum *vacuum, int number, Buffer buffer, const char *engine,
				const char *audit)
{
	AuditPlace	place = {
		.rel = vacuum->indexes[number],.buffer = buffer,.blkno = BufferGetBlockNumber(buffer)
	};

	audit_fail(vacuum, &place, engine, audit);
}

/* describe_entry -- what happens to an entry; palloc'd. */
static char *
describe_entry(const ItemPointerData *tid, const char *what)
{
	return psprintf("the entry of row (%u,%u) %s", ItemPointerGetBlockNumberNoCheck(tid),
					ItemPointerGetOffsetNumberNoCheck(tid), what);
}
