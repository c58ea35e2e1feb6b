/*-------------------------------------------------------------------------
 *
 * audit_tids.c
 *	  The heap TIDs of an index page, read by other code than that of the kinds.
 *
 * Of btree, hash, GiST and SP-GiST indexes.  Damage is an error.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gist_private.h"
#include "access/hash.h"
#include "access/nbtree.h"
#include "access/spgist_private.h"

#include "audit/audit.h"
#include "engine/index/index_kind.h"

static Size special_size(ambulkdelete_function routine);
static void read_items(AuditTids *tids, Relation index, Page page, BlockNumber blkno);
static void read_btree(AuditTids *tids, Relation index, Page page, BlockNumber blkno);
static void read_spgist(AuditTids *tids, Relation index, Page page, BlockNumber blkno);
static void add_tids(AuditTids *tids, const ItemPointerData *more, int nmore);

/* audit_tids_are_known -- can TIDs be read of an index of this kind? */
bool
audit_tids_are_known(Relation index)
{
	return special_size(index->rd_indam->ambulkdelete) > 0;
}

/* audit_tids_read -- read those of a page, in its order; none if it is no page that has any. */
void
audit_tids_read(AuditTids *tids, Relation index, Page page, BlockNumber blkno)
{
	ambulkdelete_function routine = index->rd_indam->ambulkdelete;

	Assert(audit_tids_are_known(index));
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
		read_btree(tids, index, page, blkno);
	else if (routine == hashbulkdelete &&
			 (HashPageGetOpaque(page)->hasho_flag & (LH_BUCKET_PAGE | LH_OVERFLOW_PAGE)) != 0)
		read_items(tids, index, page, blkno);
	else if (routine == gistbulkdelete && GistPageIsLeaf(page) && !GistPageIsDeleted(page))
		read_items(tids, index, page, blkno);
	else if (routine == spgbulkdelete && SpGistPageIsLeaf(page))
		read_spgist(tids, index, page, blkno);
}

/* special_size -- how large is the special space of a page of such an index?  0 if it isn't known. */
static Size
special_size(ambulkdelete_function routine)
{
	if (routine == btbulkdelete)
		return sizeof(BTPageOpaqueData);
	if (routine == hashbulkdelete)
		return sizeof(HashPageOpaqueData);
	if (routine == gistbulkdelete)
		return sizeof(GISTPageOpaqueData);
	return routine == spgbulkdelete ? sizeof(SpGistPageOpaqueData) : 0;
}

/* read_items -- read a page whose items are index tuples with one TID each. */
static void
read_items(AuditTids *tids, Relation index, Page page, BlockNumber blkno)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
		add_tids(tids, &((IndexTuple) index_whole_tuple_at(index, blkno, page, off))->t_tid, 1);
}

/* read_btree -- read a page of a btree, posting lists included. */
static void
read_btree(AuditTids *tids, Relation index, Page page, BlockNumber blkno)
{
	BTPageOpaque opaque = BTPageGetOpaque(page);
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	if (!P_ISLEAF(opaque) || P_ISDELETED(opaque) || P_ISHALFDEAD(opaque))
		return;
	for (OffsetNumber off = P_FIRSTDATAKEY(opaque); off <= maxoff; off++)
	{
		IndexTuple	tuple = index_whole_tuple_at(index, blkno, page, off);

		if (!BTreeTupleIsPosting(tuple))
			add_tids(tids, &tuple->t_tid, 1);
		else if (BTreeTupleGetPostingOffset(tuple) +
				 BTreeTupleGetNPosting(tuple) * sizeof(ItemPointerData) > IndexTupleSize(tuple) ||
				 ItemIdGetLength(PageGetItemId(page, off)) < IndexTupleSize(tuple))
			index_report_item(index, blkno, PageGetItemId(page, off));
		else
			add_tids(tids, BTreeTupleGetPosting(tuple), BTreeTupleGetNPosting(tuple));
	}
}

/* read_spgist -- read a leaf page of an SP-GiST index. */
static void
read_spgist(AuditTids *tids, Relation index, Page page, BlockNumber blkno)
{
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(page); off++)
	{
		SpGistLeafTuple tuple = (SpGistLeafTuple) index_whole_tuple_at(index, blkno, page, off);

		if (tuple->tupstate == SPGIST_LIVE)
			add_tids(tids, &tuple->heapPtr, 1);
	}
}

/* add_tids -- add some; items of a damaged page may overlap, so there may be too many. */
static void
add_tids(AuditTids *tids, const ItemPointerData *more, int nmore)
{
	if (nmore > AUDIT_MAX_TIDS - tids->ntids)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg_internal("an index page has more than %d TIDs", (int) AUDIT_MAX_TIDS)));
	memcpy(&tids->tids[tids->ntids], more, nmore * sizeof(ItemPointerData));
	tids->ntids += nmore;
}
