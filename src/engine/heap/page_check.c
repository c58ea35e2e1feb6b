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

static bool seems_sound(Page page);
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
	if (unlikely(!seems_sound(BufferGetPage(buffer))))
		check_thoroughly(rel, buffer, removed, nremoved);
}

/*
 * seems_sound
 *		Do all items of a page, even those to be removed, lead to where rows can be?
 *
 * Without a branch in the loop, as each page that is changed is looked at.
 */
static bool
seems_sound(Page page)
{
	PageHeader	header = (PageHeader) page;
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	unsigned	first = BLCKSZ;
	unsigned	last = 0;
	unsigned	total = 0;

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		item = PageGetItemId(page, off);
		unsigned	length = ItemIdGetLength(item);
		unsigned	begin = ItemIdGetOffset(item);

		first = Min(first, length == 0 && !ItemIdIsNormal(item) ? BLCKSZ : begin);
		/* without storage it is 0, or an item's number */
		last = Max(last, begin);
		total += MAXALIGN(length);
	}
	return header->pd_lower <= header->pd_upper && header->pd_upper <= first &&
		last + SizeofHeapTupleHeader <= header->pd_special && header->pd_special <= BLCKSZ &&
		header->pd_special == MAXALIGN(header->pd_special) &&
		total <= header->pd_special - header->pd_lower;
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
