/*-------------------------------------------------------------------------
 *
 * gin_page.c
 *	  Taking the TIDs of dead items out of a leaf page of a GIN index.
 *
 * The page's new contents and the WAL record are those of GIN's own vacuum.
 * The caller holds an exclusive lock on the page.  We check what the page says as far as it
 * decides which memory is read or written.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/ginxlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "compat.h"
#include "engine/index/gin_page.h"
#include "engine/index/index_kind.h"

/* A record names segments by a byte. */
#define MAX_LOGGED_SEGMENT	PG_UINT8_MAX

static void gather_entry_lists(GinScan *scan, Page page, BlockNumber blkno);
static int	append_inline_list(GinScan *scan, IndexTuple tuple, BlockNumber blkno);
static int	append_list(GinScan *scan, GinPostingList *list, Size room, BlockNumber blkno);
static void rewrite_entry_leaf(GinScan *scan, Buffer buffer);
static IndexTuple shorten_tuple(GinScan *scan, IndexTuple tuple, int first, int nlive,
								BlockNumber blkno);
static void gather_segments(GinScan *scan, Page page, BlockNumber blkno);
static void plan_posting_leaf(GinScan *scan, Page page, BlockNumber blkno);
static void log_action(GinNewLeaf *leaf, int segment, uint8 action, const GinPostingList *list);
static void rewrite_posting_leaf(GinScan *scan, Buffer buffer);
static int	count_dead(const GinScan *scan, int first, int ntids);
static GinPostingList *compress_live(GinScan *scan, int first, int ntids, int nlive,
									 Size max_size, BlockNumber blkno);

/* gin_page_is -- is a locked page one of GIN's, of the kind that these flags describe? */
bool
gin_page_is(Buffer buffer, uint16 flags)
{
	Page		page = BufferGetPage(buffer);

	Assert(compat_is_locked(buffer));
	return !PageIsNew(page) &&
		PageGetSpecialSize(page) == MAXALIGN(sizeof(GinPageOpaqueData)) &&
		(GinPageGetOpaque(page)->flags & GIN_KIND_FLAGS) == flags;
}

/* gin_check_page -- raise an error if gin_page_is says no. */
void
gin_check_page(Relation index, Buffer buffer, uint16 flags)
{
	if (!gin_page_is(buffer, flags))
		index_report_page(index, BufferGetBlockNumber(buffer));
}

/*
 * gin_clean_entry_leaf
 *		Take dead TIDs out of a leaf page of the entry tree, and put the roots of
 *		the posting trees that it points at into scan->roots.
 */
void
gin_clean_entry_leaf(GinScan *scan, Buffer buffer)
{
	MemoryContext old = MemoryContextSwitchTo(scan->context);
	int			ndead;

	Assert(CritSectionCount == 0);
	Assert(scan->base.index == scan->base.vacuum->indexes[scan->base.number]);
	Assert(compat_buffer_is_locked_exclusively(buffer) && gin_page_is(buffer, GIN_LEAF));

	gather_entry_lists(scan, BufferGetPage(buffer), BufferGetBlockNumber(buffer));
	ndead = dead_tids_match(scan->base.vacuum->dead_tids, scan->tids, scan->ntids, scan->dead);
	if (ndead > 0)
		rewrite_entry_leaf(scan, buffer);
	scan->base.stats.tuples_removed += ndead;
	scan->base.stats.num_index_tuples += scan->ntids - ndead;

	MemoryContextSwitchTo(old);
	MemoryContextReset(scan->context);
}

/*
 * gather_entry_lists
 *		Decode all posting lists on a page of the entry tree, in order; the list of
 *		an entry with a posting tree has no TIDs.
 */
static void
gather_entry_lists(GinScan *scan, Page page, BlockNumber blkno)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	if (maxoff > GIN_MAX_ENTRIES)
		index_report_page(scan->base.index, blkno);

	scan->nroots = 0;
	scan->ntids = 0;
	scan->nlists = maxoff;
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		IndexTuple	tuple = index_whole_tuple_at(scan->base.index, blkno, page, off);
		int			length = 0;

		if (IndexTupleSize(tuple) > ItemIdGetLength(PageGetItemId(page, off)))
			index_report_page(scan->base.index, blkno);
		if (GinIsPostingTree(tuple))
			scan->roots[scan->nroots++] = GinGetPostingTree(tuple);
		else if (GinGetNPosting(tuple) > 0)
			length = append_inline_list(scan, tuple, blkno);
		scan->lengths[off - FirstOffsetNumber] = length;
	}
}

/*
 * append_inline_list
 *		Add the TIDs of a tuple's posting list to those of the page; return how
 *		many they are.
 */
static int
append_inline_list(GinScan *scan, IndexTuple tuple, BlockNumber blkno)
{
	GinPostingList *list = (GinPostingList *) GinGetPosting(tuple);
	Size		start = GinGetPostingOffset(tuple);
	Size		size = IndexTupleSize(tuple);
	int			ntids;

	if (!GinItupIsCompressed(tuple) || start < sizeof(IndexTupleData) || start > size)
		index_report_page(scan->base.index, blkno);
	ntids = append_list(scan, list, size - start, blkno);
	if (ntids != GinGetNPosting(tuple))
		index_report_page(scan->base.index, blkno);
	return ntids;
}

/*
 * append_list
 *		Decode a posting list, which may be at most as long as room, and add its
 *		TIDs to those of the page; return how many they are.
 */
static int
append_list(GinScan *scan, GinPostingList *list, Size room, BlockNumber blkno)
{
	ItemPointer tids;
	int			ntids = 1;

	/* each byte ends at most one TID, and the last byte ends one */
	if (room < offsetof(GinPostingList, bytes) || room < SizeOfGinPostingList(list) ||
		scan->ntids + list->nbytes >= GIN_MAX_TIDS ||
		(list->nbytes > 0 && (list->bytes[list->nbytes - 1] & 0x80) != 0))
		index_report_page(scan->base.index, blkno);

	/* the list of a key that is in one row only */
	if (list->nbytes == 0)
		scan->tids[scan->ntids++] = list->first;
	else
	{
		tids = ginPostingListDecode(list, &ntids);
		memcpy(&scan->tids[scan->ntids], tids, ntids * sizeof(ItemPointerData));
		scan->ntids += ntids;
		pfree(tids);
	}
	return ntids;
}

/*
 * rewrite_entry_leaf
 *		Put shorter tuples in the place of those that have dead TIDs.
 *
 * All others are copied, so their sizes are checked, too.
 */
static void
rewrite_entry_leaf(GinScan *scan, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	PGAlignedBlock image;
	Page		new_page = (Page) image.data;
	int			first = 0;

	index_check_items(scan->base.index, buffer);
	GinInitPage(new_page, GinPageGetOpaque(page)->flags, BLCKSZ);
	*GinPageGetOpaque(new_page) = *GinPageGetOpaque(page);
	PageSetLSN(new_page, PageGetLSN(page));

	for (int i = 0; i < scan->nlists; i++)
	{
		OffsetNumber off = FirstOffsetNumber + i;
		ItemId		item = PageGetItemId(page, off);
		IndexTuple	tuple = (IndexTuple) PageGetItem(page, item);
		int			ndead = count_dead(scan, first, scan->lengths[i]);

		if (IndexTupleSize(tuple) != ItemIdGetLength(item))
			index_report_page(scan->base.index, blkno);
		if (ndead > 0)
			tuple = shorten_tuple(scan, tuple, first, scan->lengths[i] - ndead, blkno);
		first += scan->lengths[i];
		if (PageAddItem(new_page, (char *) tuple, IndexTupleSize(tuple), off, false, false) != off)
			index_report_page(scan->base.index, blkno);
	}
	Assert(first == scan->ntids);

	START_CRIT_SECTION();
	memcpy(page, new_page, BLCKSZ);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(scan->base.index))
	{
		XLogBeginInsert();
		XLogRegisterBuffer(0, buffer, REGBUF_FORCE_IMAGE | REGBUF_STANDARD);
		PageSetLSN(page, XLogInsert(RM_GIN_ID, XLOG_GIN_VACUUM_PAGE));
	}
	END_CRIT_SECTION();
}

/*
 * shorten_tuple
 *		Make a tuple with the nlive TIDs of this one that aren't dead; palloc'd.  The
 *		TIDs of this one begin at first.
 *
 * The list already has the key in front, as GinFormTuple would form it.
 */
static IndexTuple
shorten_tuple(GinScan *scan, IndexTuple tuple, int first, int nlive, BlockNumber blkno)
{
	Size		start = GinGetPostingOffset(tuple);
	Size		old_size = IndexTupleSize(tuple);
	Size		list_size = 0;
	GinPostingList *list = NULL;
	IndexTuple	new_tuple;
	Size		size;

	if (nlive > 0)
	{
		list = compress_live(scan, first, GinGetNPosting(tuple), nlive,
							 old_size - start, blkno);
		list_size = SizeOfGinPostingList(list);
	}

	size = MAXALIGN(start + list_size);
	Assert(size <= MAXALIGN(old_size));
	new_tuple = palloc0(size);
	memcpy(new_tuple, tuple, start);
	if (list != NULL)
		memcpy((char *) new_tuple + start, list, list_size);
	new_tuple->t_info = (tuple->t_info & ~INDEX_SIZE_MASK) | size;
	GinSetNPosting(new_tuple, nlive);
	return new_tuple;
}

/*
 * gin_clean_posting_leaf
 *		Take dead TIDs out of a leaf page of a posting tree; is nothing left?
 */
bool
gin_clean_posting_leaf(GinScan *scan, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	MemoryContext old;
	int			ndead;

	Assert(CritSectionCount == 0);
	Assert(scan->base.index == scan->base.vacuum->indexes[scan->base.number]);
	Assert(compat_buffer_is_locked_exclusively(buffer) && gin_page_is(buffer, GIN_DATA | GIN_LEAF));

	old = MemoryContextSwitchTo(scan->context);
	gather_segments(scan, page, BufferGetBlockNumber(buffer));
	ndead = dead_tids_match(scan->base.vacuum->dead_tids, scan->tids, scan->ntids, scan->dead);
	if (ndead > 0)
	{
		plan_posting_leaf(scan, page, BufferGetBlockNumber(buffer));
		rewrite_posting_leaf(scan, buffer);
	}
	scan->base.stats.tuples_removed += ndead;
	scan->base.stats.num_index_tuples += scan->ntids - ndead;

	MemoryContextSwitchTo(old);
	MemoryContextReset(scan->context);
	Assert(ndead < scan->ntids || GinDataLeafPageIsEmpty(page));
	return ndead == scan->ntids;
}

/* gather_segments -- decode all lists on a page of a posting tree, in order. */
static void
gather_segments(GinScan *scan, Page page, BlockNumber blkno)
{
	char	   *start = (char *) GinDataLeafPageGetPostingList(page);
	Size		room = PageGetSpecialPointer(page) - start;
	Size		size = GinDataLeafPageGetPostingListSize(page);
	char	   *end = start + size;

	if (!GinPageIsCompressed(page) || size > room)
		index_report_page(scan->base.index, blkno);

	scan->nlists = 0;
	scan->ntids = 0;
	for (char *place = start; place < end;)
	{
		GinPostingList *segment = (GinPostingList *) place;

		scan->lengths[scan->nlists++] = append_list(scan, segment, end - place, blkno);
		place += SizeOfGinPostingList(segment);
	}
}

/*
 * plan_posting_leaf
 *		Make the lists of a posting tree's page without the dead TIDs, and the
 *		record that says what changes.
 */
static void
plan_posting_leaf(GinScan *scan, Page page, BlockNumber blkno)
{
	GinNewLeaf *leaf = &scan->leaf;
	GinPostingList *segment = GinDataLeafPageGetPostingList(page);
	ginxlogRecompressDataLeaf *header = (ginxlogRecompressDataLeaf *) leaf->record;
	int			first = 0;

	leaf->size = 0;
	leaf->record_size = sizeof(ginxlogRecompressDataLeaf);
	header->nactions = 0;
	for (int i = 0; i < scan->nlists; i++)
	{
		int			ndead = count_dead(scan, first, scan->lengths[i]);
		int			nlive = scan->lengths[i] - ndead;
		Size		old_size = SizeOfGinPostingList(segment);
		GinPostingList *list = segment;

		if (ndead > 0)
		{
			if (i > MAX_LOGGED_SEGMENT)
				index_report_page(scan->base.index, blkno);
			list = nlive == 0 ? NULL :
				compress_live(scan, first, scan->lengths[i], nlive, old_size, blkno);
			log_action(leaf, i, nlive == 0 ? GIN_SEGMENT_DELETE : GIN_SEGMENT_REPLACE, list);
			header->nactions++;
		}
		if (list != NULL)
		{
			memcpy(leaf->data + leaf->size, list, SizeOfGinPostingList(list));
			leaf->size += SizeOfGinPostingList(list);
		}
		first += scan->lengths[i];
		segment = (GinPostingList *) ((char *) segment + old_size);
	}
	Assert(first == scan->ntids);
	Assert(leaf->size <= GinDataLeafPageGetPostingListSize(page));
}

/* log_action -- add to the record what is done to a segment. */
static void
log_action(GinNewLeaf *leaf, int segment, uint8 action, const GinPostingList *list)
{
	char	   *place = leaf->record + leaf->record_size;

	*place++ = (char) segment;
	*place++ = (char) action;
	if (list != NULL)
	{
		memcpy(place, list, SizeOfGinPostingList(list));
		place += SizeOfGinPostingList(list);
	}
	leaf->record_size = place - leaf->record;
	Assert(leaf->record_size <= sizeof(leaf->record));
}

/* rewrite_posting_leaf -- change a posting tree's page as planned. */
static void
rewrite_posting_leaf(GinScan *scan, Buffer buffer)
{
	GinNewLeaf *leaf = &scan->leaf;
	Page		page = BufferGetPage(buffer);

	START_CRIT_SECTION();
	memcpy(GinDataLeafPageGetPostingList(page), leaf->data, leaf->size);
	GinDataPageSetDataSize(page, leaf->size);
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(scan->base.index))
	{
		XLogBeginInsert();
		XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
		XLogRegisterBufData(0, leaf->record, leaf->record_size);
		PageSetLSN(page, XLogInsert(RM_GIN_ID, XLOG_GIN_VACUUM_DATA_LEAF_PAGE));
	}
	END_CRIT_SECTION();
}

/* count_dead -- how many TIDs of a list, from first on, are dead? */
static int
count_dead(const GinScan *scan, int first, int ntids)
{
	int			ndead = 0;

	Assert(first >= 0 && ntids >= 0 && first + ntids <= scan->ntids);
	for (int i = first; i < first + ntids; i++)
		ndead += scan->dead[i];
	return ndead;
}

/*
 * compress_live
 *		Make a list of the nlive TIDs that aren't dead, of the ntids ones from first
 *		on; palloc'd.
 */
static GinPostingList *
compress_live(GinScan *scan, int first, int ntids, int nlive, Size max_size, BlockNumber blkno)
{
	ItemPointer tids = &scan->tids[first];
	const bool *dead = &scan->dead[first];
	GinPostingList *list;
	int			n = 0;

	Assert(first >= 0 && first + ntids <= scan->ntids);
	for (int i = 0; i < ntids; i++)
	{
		tids[n] = tids[i];
		n += !dead[i];
	}
	Assert(n == nlive && nlive > 0);

	/* what compresses them relies on that */
	for (int i = 1; i < nlive; i++)
		if (ItemPointerCompare(&tids[i - 1], &tids[i]) >= 0)
			index_report_page(scan->base.index, blkno);
	list = ginCompressPostingList(tids, nlive, max_size, &n);
	if (n != nlive)
		index_report_page(scan->base.index, blkno);
	return list;
}
