/*-------------------------------------------------------------------------
 *
 * audit_index.c
 *	  Pages of indexes, judged a second time: see audit.c.
 *
 * The TIDs of a page are read here by code of its own for each access method, not
 * by that of the kinds.  A page is looked at twice:
 *
 * - When it is visited, before and after it is changed, under the visitor's lock:
 *	 each TID is searched for in the store by itself (audit_match), and the TIDs that
 *	 are left must be those that were there without the dead ones, in the same order
 *	 (audit_deleted).  SP-GiST changes the order, so there only their number is compared.
 *	 A page of a hash index that loses other entries, too, after a split, has the first
 *	 half of this only.
 * - When all indexes have been passed over, in a phase of its own: is an entry of
 *	 a dead item left?  Nobody can make one any more, so there is no excuse, wherever
 *	 its page was split, and whichever member had to visit it.  This is about pages, not
 *	 about looking up TIDs, so all TIDs of a page are looked up in one go.  Of a
 *	 GIN index, only its entry tree is looked at here (audit_may_pass_over).
 *
 * The second look goes by sections of adjacent blocks, which disks read faster than
 * single ones.  Whether a section is looked at depends on a hash of its place and of a
 * number that the leader has drawn.  So the leader can tell at once if there are any;
 * most tables are too small for one.  These pages are read for nothing else, so their
 * share is half of that of visited pages.  If all visited pages are audited, all pages
 * are looked at here, too.
 *
 * Indexes of other access methods aren't audited.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gin_private.h"
#include "access/gist_private.h"
#include "access/hash.h"
#include "access/nbtree.h"
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

/* More TIDs than any page has */
#define MAX_TIDS			BLCKSZ

/* The TIDs of a page */
struct AuditTids
{
	Relation	index;
	BlockNumber blkno;
	int			ntids;
	ItemPointerData tids[MAX_TIDS];
	bool		expects;		/* are these of the page before its change? */
	int			nbefore;
	ItemPointerData before[MAX_TIDS];
	bool		dead[MAX_TIDS];
};

static int	misjudge(bool is_dead, int ntids, bool *dead);
static void compare_dead(TableVacuum *vacuum, int number, Buffer buffer,
						 const struct AuditTids *audit, const bool *dead);
static int	count_left(const struct AuditTids *audit, bool in_order, bool *is_left);
static struct AuditTids *get_tids(TableVacuum *vacuum);
static void fail(TableVacuum *vacuum, int number, Buffer buffer,
				 const char *engine, const char *audit);
static char *describe(const ItemPointerData *tid, const char *what);
static void gather(struct AuditTids *tids, Relation index, Page page, BlockNumber blkno);
static Size special_size(ambulkdelete_function routine);
static inline void add_tid(struct AuditTids *tids, ItemPointer tid);
static void add_tids(struct AuditTids *tids, const ItemPointerData *more, int nmore);
static void raise_too_many(void);
static inline void *item_at(const struct AuditTids *tids, Page page, OffsetNumber off);
static void add_items(struct AuditTids *tids, Page page);
static void gather_btree(struct AuditTids *tids, Page page);
static void gather_spgist(struct AuditTids *tids, Page page);
static void gather_gin(struct AuditTids *tids, Page page);
static void add_list(struct AuditTids *tids, GinPostingList *list, char *end, int ntids);
static void raise_list_corruption(void);
static bool keeps_order(Relation index);
static uint64 index_claims(const IndexShared *index);
static bool is_chosen(const TableVacuum *vacuum, int number, uint64 section);
static void audit_section(TableVacuum *vacuum, int number, BlockNumber start, BlockNumber end);
static void audit_page(TableVacuum *vacuum, int number, BlockNumber blkno);
static bool audit_may_pass_over(Relation index, Page page);

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
	struct AuditTids *audit;

	Assert(number >= 0 && number < vacuum->nindexes);
	Assert(CritSectionCount == 0 && compat_buffer_is_locked_exclusively(buffer));
	Assert(ntids == 0 || (tids != NULL && dead != NULL));
	Assert(ntids >= 0);
	if (DEBUG_FAULT("index-entry"))
		ndead -= misjudge(true, ntids, dead);
	if (DEBUG_FAULT("index-live"))
		ndead += misjudge(false, ntids, dead);

	if (likely(!audit_is_due()))
	{
		if (vacuum->audit_tids != NULL)
			vacuum->audit_tids->expects = false;
		return ndead;
	}

	audit = get_tids(vacuum);
	gather(audit, vacuum->indexes[number], BufferGetPage(buffer), BufferGetBlockNumber(buffer));
	if (audit->ntids != ntids || memcmp(audit->tids, tids, ntids * sizeof(ItemPointerData)) != 0)
		fail(vacuum, number, buffer,
			 psprintf("the page has %d TIDs", ntids), psprintf("it has %d, or others", audit->ntids));
	dead_tids_search(vacuum->dead_tids, audit->tids, audit->ntids, audit->dead);
	compare_dead(vacuum, number, buffer, audit, dead);
	audit->nbefore = audit->ntids;
	memcpy(audit->before, audit->tids, audit->ntids * sizeof(ItemPointerData));
	audit->expects = true;
	vacuum->counters.audited_index_pages++;
	if (DEBUG_FAULT("index-stays"))
		ndead -= misjudge(true, ntids, dead);
	return ndead;
}

/* compare_dead -- are the entries dead that are about to go? */
static void
compare_dead(TableVacuum *vacuum, int number, Buffer buffer, const struct AuditTids *audit,
			 const bool *dead)
{
	int			i = 0;

	if (memcmp(audit->dead, dead, audit->ntids * sizeof(bool)) == 0)
		return;
	while (audit->dead[i] == dead[i])
		i++;
	fail(vacuum, number, buffer,
		 describe(&audit->tids[i], dead[i] ? "goes" : "stays"),
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
	struct AuditTids *audit = vacuum->audit_tids;
	Relation	index = vacuum->indexes[number];
	bool		is_left;
	int			nleft;

	Assert(number >= 0 && number < vacuum->nindexes);
	Assert(BufferIsValid(buffer));
	Assert(CritSectionCount == 0 && compat_buffer_is_locked_exclusively(buffer));
	if (audit == NULL || !audit->expects)
		return;
	audit->expects = false;
	gather(audit, index, BufferGetPage(buffer), BufferGetBlockNumber(buffer));
	nleft = count_left(audit, keeps_order(index), &is_left);
	if (nleft != audit->ntids || !is_left)
		fail(vacuum, number, buffer,
			 psprintf("%d TIDs are left on the page, in this order", audit->ntids),
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
count_left(const struct AuditTids *audit, bool in_order, bool *is_left)
{
	int			nleft = 0;
	int			end;

	*is_left = true;
	for (int start = 0; start < audit->nbefore; start = end + 1)
	{
		const bool *dead = &audit->dead[start];

		end = start;
		if (*dead)
			continue;
		dead = memchr(dead, true, audit->nbefore - start);
		end = dead != NULL ? dead - audit->dead : audit->nbefore;
		if (nleft + end - start > audit->ntids ||
			(in_order && memcmp(&audit->tids[nleft], &audit->before[start],
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

		index->audit_blocks = vacuum->kinds[i] != NULL ? index_current_size(vacuum->indexes[i]) : 0;
		for (uint64 section = 0; !any && section * SECTION_BLOCKS < index->audit_blocks; section++)
			any = is_chosen(vacuum, i, section);
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
		while (number < vacuum->nindexes && claim >= index_claims(vacuum_index(shared, number)))
			claim -= index_claims(vacuum_index(shared, number++));
		if (number == vacuum->nindexes)
			break;

		vacuum->indname = RelationGetRelationName(vacuum->indexes[number]);
		set_place(vacuum, PLACE_INDEX_VACUUM, InvalidBlockNumber);
		first = claim * SECTIONS_A_CLAIM;
		for (uint64 section = first; section < first + SECTIONS_A_CLAIM; section++)
		{
			uint64		start = section * SECTION_BLOCKS;
			BlockNumber end = vacuum_index(shared, number)->audit_blocks;

			if (start < end && is_chosen(vacuum, number, section))
				audit_section(vacuum, number, start, Min(start + SECTION_BLOCKS, end));
		}
		set_place(vacuum, PLACE_UNKNOWN, InvalidBlockNumber);
		vacuum->indname = NULL;
	}
}

/* index_claims -- how many claims there are on an index. */
static uint64
index_claims(const IndexShared *index)
{
	const uint64 blocks = SECTION_BLOCKS * SECTIONS_A_CLAIM;

	return (index->audit_blocks + blocks - 1) / blocks;
}

/* is_chosen -- is a section of an index looked at in this round? */
static bool
is_chosen(const TableVacuum *vacuum, int number, uint64 section)
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
	for (BlockNumber blkno = start; blkno < end; blkno++)
	{
		before_index_read(vacuum, number, blkno);
		(void) PrefetchBuffer(vacuum->indexes[number], MAIN_FORKNUM, blkno);
	}
	for (BlockNumber blkno = start; blkno < end; blkno++)
	{
		delay_point();
		failsafe_notice(vacuum);
		audit_page(vacuum, number, blkno);
	}
}

/* audit_page -- has a page an entry of a dead item? */
static void
audit_page(TableVacuum *vacuum, int number, BlockNumber blkno)
{
	struct AuditTids *audit = get_tids(vacuum);
	Relation	index = vacuum->indexes[number];
	Buffer		buffer = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL,
											vacuum_strategy(vacuum));
	PGAlignedBlock copy;
	AuditPlace	place = {.rel = index,.page = (Page) copy.data,.blkno = blkno};
	int			first = 0;
	int			ndead;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (audit_may_pass_over(index, BufferGetPage(buffer)))
	{
		UnlockReleaseBuffer(buffer);
		return;
	}
	gather(audit, index, BufferGetPage(buffer), blkno);
	ndead = dead_tids_match(vacuum->dead_tids, audit->tids, audit->ntids, audit->dead);
	if (ndead > 0)
		memcpy(place.page, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	vacuum->counters.audited_index_pages++;
	if (ndead == 0)
		return;

	while (!audit->dead[first])
		first++;
	audit_fail(vacuum, &place, "all entries of dead rows are gone",
			   describe(&audit->tids[first], "is still there"));
}

/*
 * audit_may_pass_over
 *		Is this a page of a GIN index to which nothing may lead, and on which entries of
 *		dead rows may stay?
 *
 * An insertion that fails leaves pages of the pending list, and of posting trees, that it
 * has filled but not linked.  No scan reads them, and no VACUUM comes to them.
 */
static bool
audit_may_pass_over(Relation index, Page page)
{
	return index->rd_indam->ambulkdelete == ginbulkdelete && !PageIsNew(page) &&
		PageGetSpecialSize(page) == MAXALIGN(sizeof(GinPageOpaqueData)) &&
		(GinPageIsList(page) || GinPageIsData(page));
}

/* get_tids -- where this process puts the TIDs of a page, made when first needed. */
static struct AuditTids *
get_tids(TableVacuum *vacuum)
{
	if (vacuum->audit_tids == NULL)
	{
		vacuum->audit_tids = MemoryContextAlloc(vacuum->audit_context,
												sizeof(struct AuditTids));
		vacuum->audit_tids->expects = false;
	}
	return vacuum->audit_tids;
}

/* fail -- there are two verdicts on a locked page. */
static void
fail(TableVacuum *vacuum, int number, Buffer buffer, const char *engine, const char *audit)
{
	AuditPlace	place = {
		.rel = vacuum->indexes[number],.buffer = buffer,.blkno = BufferGetBlockNumber(buffer)
	};

	audit_fail(vacuum, &place, engine, audit);
}

/* describe -- what happens to an entry; palloc'd. */
static char *
describe(const ItemPointerData *tid, const char *what)
{
	return psprintf("the entry of row (%u,%u) %s", ItemPointerGetBlockNumberNoCheck(tid),
					ItemPointerGetOffsetNumberNoCheck(tid), what);
}

/* keeps_order -- does a deletion leave the other entries of a page in their order? */
static bool
keeps_order(Relation index)
{
	return index->rd_indam->ambulkdelete != spgbulkdelete;
}

/*
 * gather
 *		Read the heap TIDs of an index's page; no TIDs if it is no page that has any.
 */
static void
gather(struct AuditTids *tids, Relation index, Page page, BlockNumber blkno)
{
	ambulkdelete_function routine = index->rd_indam->ambulkdelete;

	tids->index = index;
	tids->blkno = blkno;
	tids->ntids = 0;
	if (PageIsNew(page))
		return;
	/* the special space says what kind of page it is */
	if (PageGetSpecialSize(page) != MAXALIGN(special_size(routine)))
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" contains corrupted page at block %u",
						RelationGetRelationName(index), blkno),
				 errhint("Please REINDEX it.")));
	if (routine == btbulkdelete && blkno != BTREE_METAPAGE)
		gather_btree(tids, page);
	else if (routine == hashbulkdelete &&
			 (HashPageGetOpaque(page)->hasho_flag & (LH_BUCKET_PAGE | LH_OVERFLOW_PAGE)) != 0)
		add_items(tids, page);
	else if (routine == gistbulkdelete && GistPageIsLeaf(page) && !GistPageIsDeleted(page))
		add_items(tids, page);
	else if (routine == spgbulkdelete && SpGistPageIsLeaf(page))
		gather_spgist(tids, page);
	else if (routine == ginbulkdelete && blkno != GIN_METAPAGE_BLKNO)
		gather_gin(tids, page);
}

/* special_size -- how large is the special space of each page of an index? */
static Size
special_size(ambulkdelete_function routine)
{
	if (routine == btbulkdelete)
		return sizeof(BTPageOpaqueData);
	if (routine == hashbulkdelete)
		return sizeof(HashPageOpaqueData);
	if (routine == gistbulkdelete)
		return sizeof(GISTPageOpaqueData);
	if (routine == spgbulkdelete)
		return sizeof(SpGistPageOpaqueData);
	Assert(routine == ginbulkdelete);
	return sizeof(GinPageOpaqueData);
}

/* add_tid -- add a TID; an error if there are too many. */
static inline void
add_tid(struct AuditTids *tids, ItemPointer tid)
{
	if (unlikely(tids->ntids == MAX_TIDS))
		raise_too_many();
	tids->tids[tids->ntids++] = *tid;
}

/* add_tids -- add several. */
static void
add_tids(struct AuditTids *tids, const ItemPointerData *more, int nmore)
{
	if (nmore > MAX_TIDS - tids->ntids)
		raise_too_many();
	memcpy(&tids->tids[tids->ntids], more, nmore * sizeof(ItemPointerData));
	tids->ntids += nmore;
}

/* raise_too_many -- raise an error about how many TIDs there are. */
static void
raise_too_many(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg_internal("an index page has more than %d TIDs", MAX_TIDS)));
}

/* item_at -- an index tuple of a page; an error unless it is on the page. */
static inline void *
item_at(const struct AuditTids *tids, Page page, OffsetNumber off)
{
	return index_whole_tuple_at(tids->index, tids->blkno, page, off);
}

/* add_items -- add the TIDs of a page whose items are index tuples with one TID each. */
static void
add_items(struct AuditTids *tids, Page page)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
		add_tid(tids, &((IndexTuple) item_at(tids, page, off))->t_tid);
}

/* gather_btree -- read those of a page of a btree, posting lists included. */
static void
gather_btree(struct AuditTids *tids, Page page)
{
	BTPageOpaque opaque = BTPageGetOpaque(page);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	if (!P_ISLEAF(opaque) || P_ISDELETED(opaque) || P_ISHALFDEAD(opaque))
		return;
	for (OffsetNumber off = P_FIRSTDATAKEY(opaque); off <= maxoff; off++)
	{
		IndexTuple	tuple = (IndexTuple) item_at(tids, page, off);

		if (!BTreeTupleIsPosting(tuple))
			add_tid(tids, &tuple->t_tid);
		else if (BTreeTupleGetPostingOffset(tuple) +
				 BTreeTupleGetNPosting(tuple) * sizeof(ItemPointerData) > IndexTupleSize(tuple) ||
				 ItemIdGetLength(PageGetItemId(page, off)) < IndexTupleSize(tuple))
			raise_list_corruption();
		else
			add_tids(tids, BTreeTupleGetPosting(tuple), BTreeTupleGetNPosting(tuple));
	}
}

/* gather_spgist -- read those of a leaf page of an SP-GiST index. */
static void
gather_spgist(struct AuditTids *tids, Page page)
{
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		SpGistLeafTuple tuple = (SpGistLeafTuple) item_at(tids, page, off);

		if (tuple->tupstate == SPGIST_LIVE)
			add_tid(tids, &tuple->heapPtr);
	}
}

/* gather_gin -- read those of a page of a GIN index: of either tree, or of the pending list. */
static void
gather_gin(struct AuditTids *tids, Page page)
{
	if (GinPageIsDeleted(page))
		return;
	if (GinPageGetOpaque(page)->flags & GIN_LIST)
		add_items(tids, page);
	else if (GinPageIsData(page) && GinPageIsLeaf(page) && GinPageIsCompressed(page))
	{
		char	   *place = (char *) GinDataLeafPageGetPostingList(page);
		Size		room = PageGetSpecialPointer(page) - place;
		Size		size = GinDataLeafPageGetPostingListSize(page);
		char	   *end = place + size;

		if (size > room)
			raise_list_corruption();
		while (place < end)
		{
			add_list(tids, (GinPostingList *) place, end, -1);
			place += SizeOfGinPostingList((GinPostingList *) place);
		}
	}
	else if (!GinPageIsData(page) && GinPageIsLeaf(page))
	{
		for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
		{
			IndexTuple	tuple = (IndexTuple) item_at(tids, page, off);

			if (ItemIdGetLength(PageGetItemId(page, off)) < IndexTupleSize(tuple))
				raise_list_corruption();
			if (!GinIsPostingTree(tuple) && GinGetNPosting(tuple) > 0 && GinItupIsCompressed(tuple))
				add_list(tids, (GinPostingList *) GinGetPosting(tuple), (char *) tuple + IndexTupleSize(tuple),
						 GinGetNPosting(tuple));
		}
	}
}

/*
 * add_list
 *		Add the TIDs of a compressed list: ntids of them, unless that is -1.  No byte from
 *		end on is read.
 */
static void
add_list(struct AuditTids *tids, GinPostingList *list, char *end, int ntids)
{
	int			ndecoded;
	ItemPointer decoded;

	/*
	 * in this order: the list may begin so near the end that its length can't
	 * be read
	 */
	if (end - (char *) list < (ptrdiff_t) offsetof(GinPostingList, bytes) ||
		end - (char *) list < (ptrdiff_t) SizeOfGinPostingList(list) ||
		(list->nbytes > 0 && (list->bytes[list->nbytes - 1] & 0x80) != 0))
		raise_list_corruption();
	if (list->nbytes == 0 && ntids <= 1)
	{
		add_tid(tids, &list->first);
		return;
	}
	decoded = ginPostingListDecode(list, &ndecoded);
	if (ntids >= 0 && ndecoded != ntids)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg_internal("a list of %d TIDs has %d", ntids, ndecoded)));
	add_tids(tids, decoded, ndecoded);
	pfree(decoded);
}

/* raise_list_corruption -- raise an error about a list of TIDs. */
static void
raise_list_corruption(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg_internal("a list of TIDs goes past the end of its page")));
}
