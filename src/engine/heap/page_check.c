/*-------------------------------------------------------------------------
 *
 * page_check.c
 *	  Damage that must be found before a page is changed.
 *
 * The server moves the rows of a page together where it prunes it, in a critical
 * section.  If an item leads elsewhere it notices there, and an error in a critical
 * section ends the server, again and again if it is autovacuum's.  The same
 * fields are looked at here before, where damage is an error that names block and item.
 * Freezing writes to where items lead, so the same goes for it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"

#include "compat.h"
#include "engine/heap/page_check.h"
#include "engine/page_items.h"

static bool is_sound(Page page);
static void check_thoroughly(Relation rel, Buffer buffer, const OffsetNumber *removed,
							 int nremoved);

/*
 * page_check_count
 *		Raise an error if a page, which isn't new, has more items than rows fit on one.
 *
 * Arrays of ours and of the server have room for that many.
 */
void
page_check_count(Relation rel, Buffer buffer)
{
	OffsetNumber count = PageGetMaxOffsetNumber(BufferGetPage(buffer));

	Assert(CritSectionCount == 0);
	Assert(compat_is_locked(buffer));
	if (unlikely(count > MaxHeapTuplesPerPage))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of relation \"%s\" is corrupted: it has %u items, and room for %u",
						BufferGetBlockNumber(buffer), RelationGetRelationName(rel),
						count, (unsigned) MaxHeapTuplesPerPage)));
}

/* is_sound -- do all items lead to where rows can be, even those to be removed? */
static bool
is_sound(Page page)
{
	return page_items_are_sound(page, true);
}

/*
 * page_check_rows
 *		Raise an error if a normal item leads to where a row's header isn't all on the
 *		page; return whether all items lead to where rows can be.
 */
bool
page_check_rows(Relation rel, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);

	Assert(compat_is_locked(buffer));
	if (likely(is_sound(page)))
		return true;
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
		if (ItemIdIsNormal(PageGetItemId(page, off)))
			(void) page_check_row_at(rel, buffer, page, off);
	return false;
}

/*
 * page_check_before_change
 *		Raise an error if the items of a page that stay aren't where rows can be.
 */
void
page_check_before_change(Relation rel, Buffer buffer, const OffsetNumber *removed, int nremoved)
{
	Assert(CritSectionCount == 0);
	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(nremoved >= 0 && (nremoved == 0 || removed != NULL));
	if (unlikely(!is_sound(BufferGetPage(buffer))))
		check_thoroughly(rel, buffer, removed, nremoved);
}

/* check_thoroughly -- leaving out the items to be removed, raise the error, if there is one. */
static void
check_thoroughly(Relation rel, Buffer buffer, const OffsetNumber *removed, int nremoved)
{
	Page		page = BufferGetPage(buffer);
	PageHeader	header = (PageHeader) page;
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	unsigned	total = 0;
	int			next = 0;

	Assert(maxoff <= MaxHeapTuplesPerPage);
	if (header->pd_lower > header->pd_upper || header->pd_upper > header->pd_special ||
		header->pd_special > BLCKSZ || header->pd_special != MAXALIGN(header->pd_special))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of relation \"%s\" is corrupted: lower = %u, upper = %u, special = %u",
						BufferGetBlockNumber(buffer), RelationGetRelationName(rel),
						header->pd_lower, header->pd_upper, header->pd_special)));

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(page, off);

		if (next < nremoved && removed[next] == off)
		{
			next++;
			continue;
		}
		if (ItemIdIsNormal(item) &&
			(ItemIdGetOffset(item) < header->pd_upper || !page_check_fits(item)))
			page_check_report_item(rel, buffer, off);
		if (!ItemIdHasStorage(item))
			continue;
		if (ItemIdGetOffset(item) < header->pd_upper ||
			ItemIdGetOffset(item) + SizeofHeapTupleHeader > header->pd_special)
			page_check_report_item(rel, buffer, off);
		total += MAXALIGN(ItemIdGetLength(item));
	}
	if (total > header->pd_special - header->pd_lower)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of relation \"%s\" is corrupted: its items have %u bytes, where there is room for %u",
						BufferGetBlockNumber(buffer), RelationGetRelationName(rel),
						total, (unsigned) (header->pd_special - header->pd_lower))));
}

/* page_check_report_item -- raise the error on an item. */
void
page_check_report_item(Relation rel, Buffer buffer, OffsetNumber off)
{
	Page		page = BufferGetPage(buffer);
	ItemId		item = PageGetItemId(page, off);

	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("block %u of relation \"%s\" has a corrupted item %u",
					BufferGetBlockNumber(buffer), RelationGetRelationName(rel), off),
			 errdetail("Its offset is %u, its length %u; rows begin at %u or behind.",
					   ItemIdGetOffset(item), ItemIdGetLength(item),
					   ((PageHeader) page)->pd_upper)));
}
