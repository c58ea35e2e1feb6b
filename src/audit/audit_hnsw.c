/*-------------------------------------------------------------------------
 *
 * audit_hnsw.c
 *	  Pages of HNSW indexes of pgvector, judged a second time: see audit_btree.c.
 *
 * When all indexes have been passed over no element has a row that is dead, and no live element
 * leads to one that this VACUUM has marked deleted.  (An older damage of that sort isn't ours.)
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"

#include "audit/audit.h"
#include "engine/index/hnsw_page.h"

static Page copy_page(TableVacuum *vacuum, Relation index, BlockNumber blkno, PGAlignedBlock *copy);
static void audit_links(TableVacuum *vacuum, int number, const AuditPlace *place,
						const HnswElement *element);

/* audit_hnsw_page -- are the rows and the links of the elements of a page all right? */
void
audit_hnsw_page(TableVacuum *vacuum, int number, BlockNumber blkno)
{
	Relation	index = vacuum->indexes[number];
	PGAlignedBlock copy;
	AuditPlace	place = {.rel = index,.page = copy_page(vacuum, index, blkno, &copy),.blkno = blkno};

	vacuum->counters.audited_index_pages++;
	if (blkno == HNSW_META_BLOCK || PageIsNew(place.page))
		return;
	for (place.off = FirstOffsetNumber; place.off <= PageGetMaxOffsetNumber(place.page); place.off++)
	{
		HnswElement *element = hnsw_element_at(place.page, place.off);
		bool		dead = false;

		if (!hnsw_is_live(element))
			continue;
		for (int i = 0; i < HNSW_ROWS && ItemPointerIsValid(&element->rows[i]); i++)
			if (dead_tids_match(vacuum->dead_tids, &element->rows[i], 1, &dead) > 0)
				audit_fail(vacuum, &place, "all entries of dead rows are gone",
						   "one is still there");
		audit_links(vacuum, number, &place, element);
	}
}

/* audit_links -- does a live element lead to one that is deleted? */
static void
audit_links(TableVacuum *vacuum, int number, const AuditPlace *place, const HnswElement *element)
{
	HnswShared *hnsw = index_area(vacuum, number);
	PGAlignedBlock copies[2];
	Page		page = copy_page(vacuum, place->rel, ItemPointerGetBlockNumberNoCheck(&element->list),
								 &copies[0]);
	HnswList   *list = hnsw_list_at(page, ItemPointerGetOffsetNumberNoCheck(&element->list));

	for (int i = 0; list != NULL && i < list->count; i++)
	{
		const ItemPointerData *link = &list->links[i];
		HnswElement *other;

		if (!hnsw_has_bit(hnsw, HNSW_DEAD, link))
			continue;
		page = copy_page(vacuum, place->rel, ItemPointerGetBlockNumberNoCheck(link), &copies[1]);
		other = hnsw_element_at(page, ItemPointerGetOffsetNumberNoCheck(link));
		if (other == NULL || other->deleted)
			audit_fail(vacuum, place, "no live element leads to a deleted one", "this one does");
	}
}

/* copy_page -- read a page, and copy it. */
static Page
copy_page(TableVacuum *vacuum, Relation index, BlockNumber blkno, PGAlignedBlock *copy)
{
	Buffer		buffer = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL,
											vacuum_strategy(vacuum));

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(copy->data, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	return (Page) copy->data;
}
