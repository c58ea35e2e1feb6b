/*-------------------------------------------------------------------------
 *
 * btree_level.c
 *	  Filling the pages of one level of a new btree.
 *
 * README.md says how the pages of a level are filled, when they are written, and how the
 * parts of the leaf level are joined.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "debug_point.h"
#include "guards/guards.h"
#include "index_build/btree_level.h"
#include "new_files/new_item.h"

/* A run, of which the first pages may have waited, and the page being filled */
#define RUN_PAGES		NEW_BLOCKS_RUN
/* A tuple up to this size needn't be checked: a page has room for three, and more */
#define SURELY_FITTING	((Size) BLCKSZ / 4)

struct BtreeLevel
{
	const NewBtree *btree;
	uint32		number;			/* 0: leaves */
	Size		reserved;		/* space to leave on each page: fillfactor */

	/* where downlinks go to: of leaves, and of pages above */
	BufFile    *downlinks;
	BtreeLevel *parent;			/* made when the first comes */

	BtreeEnds  *ends;			/* of leaves */

	/* pages from left to right, the last one being filled */
	int			npages;
	char	   *run;
	BlockNumber blocks[RUN_PAGES + 1];	/* invalid until taken */
	IndexTuple	low_keys[RUN_PAGES + 1];
	Size		last_posting;	/* size of the posting list in the last tuple */
};

/* Parts of the leaf level being joined, by the leader */
typedef struct Joining
{
	const NewBtree *btree;
	BtreeLevel *parent;
	IndexTuple	low_key;		/* of the page in hand */
	Page		page;			/* that, still without its right sibling */
	BlockNumber block;			/* and its place */
	Page		other;			/* room for another one */
} Joining;

static void join_part(Joining *join, const BtreeEnds *ends, BlockNumber previous, BufFile *file);
static void end_page_before(Joining *join, const BtreeEnds *next);
static void move_last_tuple(Joining *join);
static BlockNumber end_last_page(Joining *join, uint32 *root_number);
static void link_page(Joining *join);
static IndexTuple last_tuple(Page page);
static Page level_page(const BtreeLevel *level, int number);
static Page begin_level_page(BtreeLevel *level, IndexTuple low_key);
static Page next_page(BtreeLevel *level);
static IndexTuple remove_last(Page page);
static void set_high_key(Page page, IndexTuple high_key);
static void add_tuple(Page page, IndexTuple tuple, bool is_first_downlink);
static IndexTuple minus_infinity(void);
static void remove_place_of_high_key(Page page);
static void take_and_link(BtreeLevel *level);
static void write_pages(BtreeLevel *level);
#ifdef CYCLONE_DEBUG_POINTS
static void swap_first_tuples(Page page);
#endif
static BtreeLevel *begin_level(const NewBtree *btree, uint32 number);
static BlockNumber end_tree(BtreeLevel *level, uint32 *root_number);
static void pass_up(BtreeLevel *level, IndexTuple low_key, BlockNumber block);
static void write_page(const NewBtree *btree, BlockNumber block, Page page);
static IndexTuple read_downlink(BufFile *file);
static IndexTuple first_tuple(const BtreeEnds *ends);
#ifdef USE_ASSERT_CHECKING
static bool is_behind_last(const BtreeLevel *level, Page page, IndexTuple tuple);
static bool may_be_written(Page page, BlockNumber block);
#endif

/*
 * begin_level
 *		Begin to fill a level.  Memory is the current context's.
 */
static BtreeLevel *
begin_level(const NewBtree *btree, uint32 number)
{
	BtreeLevel *level = palloc0_object(BtreeLevel);

	level->btree = btree;
	level->number = number;
	level->reserved = number == 0 ? BTGetTargetPageFreeSpace(btree->index) :
		BLCKSZ * (100 - BTREE_NONLEAF_FILLFACTOR) / 100;
	level->run = MemoryContextAllocAligned(CurrentMemoryContext, (RUN_PAGES + 1) * BLCKSZ,
										   PG_IO_ALIGN_SIZE, 0);
	return level;
}

/* btree_level_begin_leaves -- begin to fill a part of the leaf level. */
BtreeLevel *
btree_level_begin_leaves(const NewBtree *btree, BufFile *downlinks, BtreeEnds *ends)
{
	BtreeLevel *level = begin_level(btree, 0);

	level->downlinks = downlinks;
	level->ends = ends;
	ends->npages = 0;
	return level;
}

/*
 * btree_level_add
 *		Add a tuple.
 *
 * Before a tuple becomes a high key its posting list is cut off, which counts when it
 * is decided whether the page is full.
 */
void
btree_level_add(BtreeLevel *level, IndexTuple tuple, Size posting_size)
{
	bool		is_leaf = level->number == 0;
	Size		size = MAXALIGN(IndexTupleSize(tuple));
	Page		page;
	Size		room;

	CHECK_FOR_INTERRUPTS();

	Assert(level->npages >= 0 && level->npages <= RUN_PAGES);
	Assert(posting_size < IndexTupleSize(tuple));
	page = level->npages > 0 ? level_page(level, level->npages - 1) :
		begin_level_page(level, minus_infinity());
	Assert(is_behind_last(level, page, tuple));
	room = new_item_room(page);
	if (size > SURELY_FITTING)
		_bt_check_third_page(level->btree->index, level->btree->heap, is_leaf, page, tuple);

	/* high keys of leaves may need room for a TID in addition */
	if (room < size + (is_leaf ? MAXALIGN(sizeof(ItemPointerData)) : 0) ||
		(room + level->last_posting < level->reserved &&
		 PageGetMaxOffsetNumber(page) > P_FIRSTKEY))
		page = next_page(level);

	add_tuple(page, tuple, !is_leaf && PageGetMaxOffsetNumber(page) == P_HIKEY);
	level->last_posting = posting_size;
}

/*
 * end_tree
 *		No more tuples come to this level, which is not that of the leaves: end
 *		it and all levels above, and return the block of the root.
 */
static BlockNumber
end_tree(BtreeLevel *level, uint32 *root_number)
{
	for (;;)
	{
		Page		last = level_page(level, level->npages - 1);
		BlockNumber block;
		bool		is_root;

		Assert(level->number > 0 && level->npages > 0);
		is_root = level->npages == 1 && level->parent == NULL;
		take_and_link(level);
		write_pages(level);

		/* the last page is the first in the run now */
		last = level_page(level, 0);
		block = level->blocks[0];
		remove_place_of_high_key(last);
		if (is_root)
			BTPageGetOpaque(last)->btpo_flags |= BTP_ROOT;
		write_page(level->btree, block, last);
		if (is_root)
		{
			*root_number = level->number;
			return block;
		}
		pass_up(level, level->low_keys[0], block);
		level = level->parent;
	}
}

/* btree_level_end_leaves -- end a part of the leaf level, and note its ends. */
void
btree_level_end_leaves(BtreeLevel *level)
{
	BtreeEnds  *ends = level->ends;

	Assert(level->number == 0 && ends != NULL && level->downlinks != NULL);
	if (level->npages == 0)
		return;

	take_and_link(level);
	write_pages(level);

	memcpy(ends->last.data, level_page(level, 0), BLCKSZ);
	ends->last_block = level->blocks[0];
	if (ends->npages == 0)
		ends->npages = 1;
	else
		memcpy(ends->last_low_key.data, level->low_keys[0],
			   IndexTupleSize(level->low_keys[0]));
}

/*
 * btree_level_join
 *		Join the parts of the leaf level, fill the levels above, and write the
 *		metapage.
 */
void
btree_level_join(const NewBtree *btree, int nparts, const BtreeEnds *parts, BufFile **downlinks)
{
	char	   *images = MemoryContextAllocAligned(CurrentMemoryContext, 2 * BLCKSZ,
												   PG_IO_ALIGN_SIZE, 0);
	Joining		join = {.btree = btree};
	BlockNumber previous = P_NONE;
	BlockNumber root = P_NONE;
	uint32		root_number = 0;
	int			next = 0;

	Assert(nparts > 0);
	Assert(pg_atomic_read_u32(&btree->blocks->nblocks) > BTREE_METAPAGE);
	join.parent = begin_level(btree, 1);
	join.low_key = minus_infinity();
	join.page = (Page) images;
	join.other = (Page) (images + BLCKSZ);

	/* the next part that isn't empty */
	while (next < nparts && parts[next].npages == 0)
		next++;

	while (next < nparts)
	{
		int			part = next;
		const BtreeEnds *ends = &parts[part];

		do
			next++;
		while (next < nparts && parts[next].npages == 0);

		join.block = ends->last_block;
		memcpy(join.page, ends->last.data, BLCKSZ);
		if (ends->npages == 1)
			BTPageGetOpaque(join.page)->btpo_prev = previous;
		else
			join_part(&join, ends, previous, downlinks[part]);

		if (next < nparts)
			end_page_before(&join, &parts[next]);
		else
			root = end_last_page(&join, &root_number);
		previous = join.block;
	}

	_bt_initmetapage(join.other, root, root_number, btree->key->allequalimage);
	write_page(btree, BTREE_METAPAGE, join.other);
}

/*
 * join_part
 *		Write the first page of a part that has more than one, which is behind
 *		another part, and add the downlinks of all but its last page.
 */
static void
join_part(Joining *join, const BtreeEnds *ends, BlockNumber previous, BufFile *file)
{
	IndexTuple	downlink = read_downlink(file);

	/* the process that filled its first page didn't know the low key */
	pfree(downlink);
	memcpy(join->other, ends->first.data, BLCKSZ);
	BTPageGetOpaque(join->other)->btpo_prev = previous;
	write_page(join->btree, ends->first_block, join->other);
	BTreeTupleSetDownLink(join->low_key, ends->first_block);
	btree_level_add(join->parent, join->low_key, 0);

	while ((downlink = read_downlink(file)) != NULL)
	{
		btree_level_add(join->parent, downlink, 0);
		pfree(downlink);
	}
	join->low_key = CopyIndexTuple((IndexTuple) ends->last_low_key.data);
}

/*
 * end_page_before
 *		Give the last page of a part the high key that it lacks, now that the
 *		next part is known, and write it.
 */
static void
end_page_before(Joining *join, const BtreeEnds *next)
{
	const NewBtree *btree = join->btree;
	IndexTuple	high_key = _bt_truncate(btree->index, last_tuple(join->page),
										first_tuple(next), btree->key);

	/* if there is no room for it, the last tuple gets a page of its own */
	if (PageGetExactFreeSpace(join->page) < MAXALIGN(IndexTupleSize(high_key)))
		move_last_tuple(join);
	set_high_key(join->page, high_key);
	BTPageGetOpaque(join->page)->btpo_next = next->npages == 1 ? next->last_block : next->first_block;
	link_page(join);
	join->low_key = high_key;
}

/*
 * move_last_tuple
 *		Write the page in hand without its last tuple, and go on with a new page
 *		that has only that.
 */
static void
move_last_tuple(Joining *join)
{
	const NewBtree *btree = join->btree;
	BlockNumber extra = new_blocks_take(btree->index, btree->blocks, 1);
	IndexTuple	tuple = remove_last(join->page);
	IndexTuple	middle;

	/* with one tuple there would have been room for a high key */
	Assert(PageGetMaxOffsetNumber(join->page) >= P_FIRSTKEY);
	middle = _bt_truncate(btree->index, last_tuple(join->page), tuple, btree->key);
	set_high_key(join->page, middle);
	BTPageGetOpaque(join->page)->btpo_next = extra;
	link_page(join);

	join->low_key = middle;
	_bt_pageinit(join->page, BLCKSZ);
	BTPageGetOpaque(join->page)->btpo_flags = BTP_LEAF;
	((PageHeader) join->page)->pd_lower += sizeof(ItemIdData);
	BTPageGetOpaque(join->page)->btpo_prev = join->block;
	add_tuple(join->page, tuple, false);
	join->block = extra;
}

/*
 * end_last_page
 *		Write the last page of the level, and all above it; return the root.
 */
static BlockNumber
end_last_page(Joining *join, uint32 *root_number)
{
	remove_place_of_high_key(join->page);
	if (P_LEFTMOST(BTPageGetOpaque(join->page)))
	{
		BTPageGetOpaque(join->page)->btpo_flags |= BTP_ROOT;
		write_page(join->btree, join->block, join->page);
		return join->block;
	}
	link_page(join);
	return end_tree(join->parent, root_number);
}

/* link_page -- write the page in hand, and add its downlink above. */
static void
link_page(Joining *join)
{
	write_page(join->btree, join->block, join->page);
	BTreeTupleSetDownLink(join->low_key, join->block);
	btree_level_add(join->parent, join->low_key, 0);
}

/* last_tuple -- the last tuple of a page. */
static IndexTuple
last_tuple(Page page)
{
	return (IndexTuple) PageGetItem(page, PageGetItemId(page, PageGetMaxOffsetNumber(page)));
}

/* level_page -- a page of the run. */
static Page
level_page(const BtreeLevel *level, int number)
{
	return (Page) (level->run + number * BLCKSZ);
}

/*
 * begin_level_page
 *		Begin a page behind the last one, writing some if need be.  Takes
 *		over low_key.
 */
static Page
begin_level_page(BtreeLevel *level, IndexTuple low_key)
{
	Page		page;

	Assert(level->npages <= RUN_PAGES);
	if (level->npages == RUN_PAGES)
	{
		take_and_link(level);
		write_pages(level);
	}

	page = level_page(level, level->npages);
	_bt_pageinit(page, BLCKSZ);
	BTPageGetOpaque(page)->btpo_level = level->number;
	BTPageGetOpaque(page)->btpo_flags = level->number == 0 ? BTP_LEAF : 0;
	((PageHeader) page)->pd_lower += sizeof(ItemIdData);
	level->blocks[level->npages] = InvalidBlockNumber;
	level->low_keys[level->npages] = low_key;
	level->npages++;
	return page;
}

/*
 * next_page
 *		Give the page being filled its high key, and begin the next one with the
 *		tuple that was its last.
 */
static Page
next_page(BtreeLevel *level)
{
	bool		is_leaf = level->number == 0;
	Page		page = level_page(level, level->npages - 1);
	IndexTuple	tuple = remove_last(page);
	IndexTuple	high_key;

	Assert(PageGetMaxOffsetNumber(page) >= P_FIRSTKEY);
	if (is_leaf)
	{
		ItemId		item = PageGetItemId(page, PageGetMaxOffsetNumber(page));

		high_key = _bt_truncate(level->btree->index, (IndexTuple) PageGetItem(page, item),
								tuple, level->btree->key);
	}
	else
		high_key = CopyIndexTuple(tuple);
	set_high_key(page, high_key);

	page = begin_level_page(level, high_key);
	add_tuple(page, tuple, !is_leaf);
	pfree(tuple);
	return page;
}

/*
 * remove_last
 *		Take the tuple that was added last from a page; return a copy.
 */
static IndexTuple
remove_last(Page page)
{
	PageHeader	header = (PageHeader) page;
	ItemId		item = PageGetItemId(page, PageGetMaxOffsetNumber(page));
	IndexTuple	tuple = (IndexTuple) PageGetItem(page, item);
	Size		size = MAXALIGN(ItemIdGetLength(item));
	IndexTuple	copy = CopyIndexTuple(tuple);

	Assert(ItemIdGetOffset(item) == header->pd_upper);
	memset(tuple, 0, size);
	memset(item, 0, sizeof(ItemIdData));
	header->pd_upper += size;
	header->pd_lower -= sizeof(ItemIdData);
	return copy;
}

/* set_high_key -- put it at the offset that was kept for it. */
static void
set_high_key(Page page, IndexTuple high_key)
{
	if (PageAddItem(page, (void *) high_key, IndexTupleSize(high_key), P_HIKEY,
					true, false) != P_HIKEY)
		elog(ERROR, "failed to add high key");
}

/* add_tuple -- behind the last one; of a level's first downlink, the key isn't stored. */
static void
add_tuple(Page page, IndexTuple tuple, bool is_first_downlink)
{
	IndexTupleData header;

	if (is_first_downlink)
	{
		header = *tuple;
		header.t_info = sizeof(IndexTupleData);
		BTreeTupleSetNAtts(&header, 0, false);
		tuple = &header;
	}
	(void) new_item_add(page, tuple, IndexTupleSize(tuple));
}

/* minus_infinity -- the low key of the first page of a level. */
static IndexTuple
minus_infinity(void)
{
	IndexTuple	tuple = palloc0(sizeof(IndexTupleData));

	tuple->t_info = sizeof(IndexTupleData);
	BTreeTupleSetNAtts(tuple, 0, false);
	return tuple;
}

/* remove_place_of_high_key -- in the last page of a level. */
static void
remove_place_of_high_key(Page page)
{
	PageHeader	header = (PageHeader) page;
	OffsetNumber last = PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = P_HIKEY; off < last; off++)
		*PageGetItemId(page, off) = *PageGetItemId(page, OffsetNumberNext(off));
	ItemIdSetUnused(PageGetItemId(page, last));
	header->pd_lower -= sizeof(ItemIdData);
}

/*
 * take_and_link
 *		Take blocks for those pages of the run that have none, and link them.
 */
static void
take_and_link(BtreeLevel *level)
{
	int			first = 0;
	BlockNumber start;

	while (first < level->npages && BlockNumberIsValid(level->blocks[first]))
		first++;
	if (first < level->npages)
	{
		start = new_blocks_take(level->btree->index, level->btree->blocks, level->npages - first);
		for (int i = first; i < level->npages; i++)
			level->blocks[i] = start + i - first;
	}
	for (int i = 1; i < level->npages; i++)
	{
		BTPageGetOpaque(level_page(level, i - 1))->btpo_next = level->blocks[i];
		BTPageGetOpaque(level_page(level, i))->btpo_prev = level->blocks[i - 1];
	}
}

/*
 * write_pages
 *		Write the pages of the run, which are linked, except the last one.  It isn't linked
 *		on the right yet, and becomes the first of the run.
 *
 * The first page of a part of the leaves isn't written, but noted as its end.
 */
static void
write_pages(BtreeLevel *level)
{
	BtreeEnds  *ends = level->ends;
	int			n = level->npages - 1;
	int			first = 0;
	Page		images[RUN_PAGES + 1];

	Assert(n >= 0);
	for (int i = 0; i < n; i++)
	{
		images[i] = level_page(level, i);
		/* linked, and with a high key */
		Assert(may_be_written(images[i], level->blocks[i]));
		Assert(BTPageGetOpaque(images[i])->btpo_next == level->blocks[i + 1]);
		Assert(BTPageGetOpaque(images[i])->btpo_level == level->number);
	}
	if (n > 0 && ends != NULL && ends->npages == 0)
	{
		ends->npages = 2;
		ends->first_block = level->blocks[0];
		memcpy(ends->first.data, images[0], BLCKSZ);
		first = 1;
	}
#ifdef CYCLONE_DEBUG_POINTS
	if (n > first && DEBUG_FAULT("btree-order"))
		swap_first_tuples(images[first]);
#endif
	if (n > first)
		new_blocks_write(level->btree->index, &level->blocks[first], &images[first], n - first);
	for (int i = 0; i < n; i++)
		pass_up(level, level->low_keys[i], level->blocks[i]);

	if (n > 0)
	{
		memcpy(level_page(level, 0), level_page(level, n), BLCKSZ);
		level->blocks[0] = level->blocks[n];
		level->low_keys[0] = level->low_keys[n];
	}
	level->npages = 1;
	/* if no other snapshot is held, none is while we wait */
	InvalidateCatalogSnapshotConditionally();
	guards_point();
}

#ifdef CYCLONE_DEBUG_POINTS
/* swap_first_tuples -- for tests: put the first two tuples of a page out of order. */
static void
swap_first_tuples(Page page)
{
	ItemId		first = PageGetItemId(page, P_FIRSTDATAKEY(BTPageGetOpaque(page)));
	ItemIdData	other = first[1];

	first[1] = first[0];
	first[0] = other;
}
#endif

/*
 * pass_up
 *		A page has its block: add its downlink to the level above, and free
 *		low_key.
 */
static void
pass_up(BtreeLevel *level, IndexTuple low_key, BlockNumber block)
{
	BTreeTupleSetDownLink(low_key, block);
	if (level->number == 0)
		BufFileWrite(level->downlinks, low_key, IndexTupleSize(low_key));
	else
	{
		if (level->parent == NULL)
			level->parent = begin_level(level->btree, level->number + 1);
		btree_level_add(level->parent, low_key, 0);
	}
	pfree(low_key);
}

/* write_page -- write one that waited for something. */
static void
write_page(const NewBtree *btree, BlockNumber block, Page page)
{
	Assert(may_be_written(page, block));
	new_blocks_write(btree->index, &block, &page, 1);
}

/* read_downlink -- the next one; NULL if there is none. */
static IndexTuple
read_downlink(BufFile *file)
{
	IndexTupleData header;
	IndexTuple	tuple;

	if (BufFileReadMaybeEOF(file, &header, sizeof(header), true) == 0)
		return NULL;
	tuple = palloc(IndexTupleSize(&header));
	*tuple = header;
	BufFileReadExact(file, tuple + 1, IndexTupleSize(&header) - sizeof(header));
	return tuple;
}

/* first_tuple -- of a part. */
static IndexTuple
first_tuple(const BtreeEnds *ends)
{
	Page		page = (Page) (ends->npages == 1 ? ends->last.data : ends->first.data);

	Assert(ends->npages == 1 || ends->npages == 2);
	Assert(PageGetMaxOffsetNumber(page) >= P_FIRSTKEY);
	return (IndexTuple) PageGetItem(page, PageGetItemId(page, P_FIRSTKEY));
}

#ifdef USE_ASSERT_CHECKING
/*
 * is_behind_last
 *		Is a tuple of the leaf level greater than the last one on the page?
 *
 * _bt_mkscankey would make the key, but reads the metapage, which isn't there.
 */
static bool
is_behind_last(const BtreeLevel *level, Page page, IndexTuple tuple)
{
	Relation	index = level->btree->index;
	BTScanInsertData key = *level->btree->key;

	if (level->number > 0 || PageGetMaxOffsetNumber(page) < P_FIRSTKEY)
		return true;
	key.keysz = IndexRelationGetNumberOfKeyAttributes(index);
	key.scantid = BTreeTupleGetHeapTID(tuple);
	for (int i = 0; i < key.keysz; i++)
	{
		ScanKey		column = &key.scankeys[i];
		bool		isnull;

		column->sk_argument = index_getattr(tuple, i + 1, RelationGetDescr(index), &isnull);
		column->sk_flags &= ~SK_ISNULL;
		if (isnull)
			column->sk_flags |= SK_ISNULL;
	}
	return _bt_compare(index, &key, page, PageGetMaxOffsetNumber(page)) > 0;
}

/*
 * may_be_written
 *		Is a page whole?  All of its items are in use, and a page that isn't the last
 *		of its level has a high key and at least one tuple.
 */
static bool
may_be_written(Page page, BlockNumber block)
{
	BTPageOpaque opaque = BTPageGetOpaque(page);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	if (block == BTREE_METAPAGE)
		return P_ISMETA(opaque);
	if (opaque->btpo_prev == block || opaque->btpo_next == block ||
		maxoff < P_FIRSTDATAKEY(opaque))
		return false;
	for (OffsetNumber off = P_HIKEY; off <= maxoff; off++)
		if (!ItemIdIsNormal(PageGetItemId(page, off)))
			return false;
	return true;
}
#endif
