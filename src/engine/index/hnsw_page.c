/*-------------------------------------------------------------------------
 *
 * hnsw_page.c
 *	  Reading and changing the pages of pgvector's HNSW indexes.
 *
 * A page is believed as far as it was checked: each line pointer leads to a tuple on the
 * page, and a tuple is as long as what it says that it has.
 *
 * Pages are changed by GenericXLog, as by pgvector itself, in place: no tuple becomes
 * longer, shorter, or moves.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "varatt.h"

#include "compat.h"
#include "engine/index/hnsw_page.h"

static void *item_at(Page page, OffsetNumber off, Size least, Size *length);
static Page lock_page(HnswScan *scan, BlockNumber blkno, Buffer *buffer);
static bool write_list(Page page, const HnswChange *change);

/* item_at -- a tuple that has at least this length; NULL if there is none. */
static void *
item_at(Page page, OffsetNumber off, Size least, Size *length)
{
	ItemId		item;

	if (off < FirstOffsetNumber || off > PageGetMaxOffsetNumber(page))
		return NULL;
	item = PageGetItemId(page, off);
	*length = ItemIdGetLength(item);
	if (!ItemIdIsNormal(item) || *length < least ||
		ItemIdGetOffset(item) != MAXALIGN(ItemIdGetOffset(item)) ||
		ItemIdGetOffset(item) < SizeOfPageHeaderData ||
		ItemIdGetOffset(item) + *length > ((PageHeader) page)->pd_special)
		return NULL;
	return PageGetItem(page, item);
}

/* hnsw_element_at -- see hnsw_page.h.  The vector of a deleted one has no length. */
HnswElement *
hnsw_element_at(Page page, OffsetNumber off)
{
	Size		length;
	HnswElement *element = item_at(page, off, HNSW_VECTOR_AT + VARHDRSZ, &length);

	if (element == NULL || element->type != HNSW_IS_ELEMENT)
		return NULL;
	if (!element->deleted &&
		(!VARATT_IS_4B_U(element->vector) || VARSIZE_4B(element->vector) < VARHDRSZ ||
		 VARSIZE_4B(element->vector) > length - HNSW_VECTOR_AT))
		return NULL;
	return element;
}

/* hnsw_list_at -- see hnsw_page.h. */
HnswList *
hnsw_list_at(Page page, OffsetNumber off)
{
	Size		length;
	HnswList   *list = item_at(page, off, HNSW_LINKS_AT, &length);

	if (list == NULL || list->type != HNSW_IS_LIST ||
		HNSW_LINKS_AT + list->count * sizeof(ItemPointerData) > length)
		return NULL;
	return list;
}

/* hnsw_check_page -- see hnsw_page.h.  The page is locked, and not new. */
void
hnsw_check_page(Relation index, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);

	if (PageGetSpecialSize(page) != MAXALIGN(sizeof(HnswOpaque)) ||
		((HnswOpaque *) PageGetSpecialPointer(page))->page_id != HNSW_PAGE_ID ||
		!index_items_are_sound(page))
		index_report_page(index, BufferGetBlockNumber(buffer));
}

/* hnsw_copy_page -- see hnsw_page.h. */
bool
hnsw_copy_page(HnswScan *scan, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	bool		is_new;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	is_new = PageIsNew(page);
	if (!is_new)
	{
		hnsw_check_page(scan->base.index, buffer);
		memcpy(scan->page.data, page, BLCKSZ);
	}
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	return !is_new;
}

/* lock_page -- lock the page that a link leads to for reading; NULL, with nothing locked, if that can't be right. */
static Page
lock_page(HnswScan *scan, BlockNumber blkno, Buffer *buffer)
{
	if (unlikely(blkno >= scan->known_blocks))
		scan->known_blocks = RelationGetNumberOfBlocks(scan->base.index);
	if (blkno < HNSW_FIRST_BLOCK || blkno >= scan->known_blocks)
		return NULL;
	*buffer = ReadBuffer(scan->base.index, blkno);
	LockBuffer(*buffer, BUFFER_LOCK_SHARE);
	if (!PageIsNew(BufferGetPage(*buffer)))
		return BufferGetPage(*buffer);
	UnlockReleaseBuffer(*buffer);
	return NULL;
}

/* hnsw_read_node -- see hnsw_page.h. */
bool
hnsw_read_node(HnswScan *scan, const ItemPointerData *tid, int layer,
			   const char *query, HnswNode *node)
{
	BlockNumber blkno = ItemPointerGetBlockNumberNoCheck(tid);
	OffsetNumber off = ItemPointerGetOffsetNumberNoCheck(tid);
	Buffer		buffer;
	Page		page = lock_page(scan, blkno, &buffer);
	HnswElement *element;

	if (page == NULL)
		return false;
	element = hnsw_element_at(page, off);
	if (element == NULL || element->deleted || element->level < layer)
	{
		UnlockReleaseBuffer(buffer);
		return false;
	}
	*node = hnsw_node_of(element, blkno, off);
	if (query != NULL)
	{
		node->vector = palloc(VARSIZE_4B(element->vector));
		memcpy(node->vector, element->vector, VARSIZE_4B(element->vector));
	}
	UnlockReleaseBuffer(buffer);
	if (query != NULL)
		node->distance = hnsw_distance(scan, query, node->vector);
	return true;
}

/*
 * hnsw_read_list -- see hnsw_page.h.
 *
 * An element that was used anew meanwhile leads nowhere: its list has another version.
 */
int
hnsw_read_list(HnswScan *scan, const HnswNode *node, ItemPointerData *links)
{
	Buffer		buffer;
	Page		page = lock_page(scan, ItemPointerGetBlockNumberNoCheck(&node->list), &buffer);
	HnswList   *list;
	int			count = 0;

	if (page == NULL)
		return 0;
	list = hnsw_list_at(page, ItemPointerGetOffsetNumberNoCheck(&node->list));
	if (list != NULL && list->version == node->version &&
		list->count == (node->level + 2) * scan->m)
	{
		count = list->count;
		memcpy(links, list->links, count * sizeof(ItemPointerData));
	}
	UnlockReleaseBuffer(buffer);
	return count;
}

/* hnsw_own_list -- see hnsw_page.h: an element must not keep links that we can't see. */
int
hnsw_own_list(HnswScan *scan, const HnswNode *node, ItemPointerData *links)
{
	int			count = hnsw_read_list(scan, node, links);

	if (count == 0)
		index_report_page(scan->base.index, ItemPointerGetBlockNumber(&node->tid));
	return count;
}

/* hnsw_distance -- by the operator class's function. */
float
hnsw_distance(HnswScan *scan, const char *a, const char *b)
{
	return (float) DatumGetFloat8(FunctionCall2Coll(scan->distance,
													scan->base.index->rd_indcollation[0],
													PointerGetDatum(a), PointerGetDatum(b)));
}

/* write_list -- write a list, if it is as it was. */
static bool
write_list(Page page, const HnswChange *change)
{
	HnswList   *list = hnsw_list_at(page, ItemPointerGetOffsetNumber(&change->node.list));

	if (list == NULL || list->count != change->count || list->version != change->node.version ||
		memcmp(list->links, change->old, change->count * sizeof(ItemPointerData)) != 0)
		return false;
	memcpy(list->links, change->new, change->count * sizeof(ItemPointerData));
	return true;
}

/* hnsw_write_lists -- see hnsw_page.h.  Lists on the same page that follow each other are written together. */
int
hnsw_write_lists(HnswScan *scan, const HnswChange *changes, int nchanges)
{
	int			nleft = 0;
	int			next;

	for (int i = 0; i < nchanges; i = next)
	{
		BlockNumber blkno = ItemPointerGetBlockNumber(&changes[i].node.list);
		Buffer		buffer = ReadBuffer(scan->base.index, blkno);
		GenericXLogState *state;
		int			nwritten = 0;
		Page		page;

		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		state = GenericXLogStart(scan->base.index);
		page = GenericXLogRegisterBuffer(state, buffer, 0);
		for (next = i; next < nchanges &&
			 ItemPointerGetBlockNumber(&changes[next].node.list) == blkno; next++)
			nwritten += write_list(page, &changes[next]);
		nleft += next - i - nwritten;
		if (nwritten > 0)
			GenericXLogFinish(state);
		else
			GenericXLogAbort(state);
		UnlockReleaseBuffer(buffer);
	}
	return nleft;
}

/* hnsw_read_meta -- a copy of what the metapage says; false if that isn't what we know. */
bool
hnsw_read_meta(Relation index, HnswMeta *meta)
{
	Buffer		buffer = ReadBuffer(index, HNSW_META_BLOCK);
	Page		page = BufferGetPage(buffer);
	bool		is_known;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(meta, PageGetContents(page), sizeof(HnswMeta));
	is_known = !PageIsNew(page) && PageGetSpecialSize(page) == MAXALIGN(sizeof(HnswOpaque)) &&
		((HnswOpaque *) PageGetSpecialPointer(page))->page_id == HNSW_PAGE_ID;
	UnlockReleaseBuffer(buffer);
	return is_known && meta->magic == HNSW_MAGIC && meta->format == HNSW_FORMAT &&
		meta->m >= HNSW_MIN_M && meta->m <= HNSW_MAX_M &&
		meta->ef_construction >= 4 && meta->ef_construction <= 1000;
}

/* hnsw_read_entry -- the entry point, and its level; an invalid place, and -1, if there is none. */
void
hnsw_read_entry(Relation index, ItemPointerData *entry, int *level)
{
	HnswMeta	meta;

	if (!hnsw_read_meta(index, &meta))
		index_report_page(index, HNSW_META_BLOCK);
	ItemPointerSet(entry, meta.entry_block, meta.entry_offset);
	*level = meta.entry_level;
}

/* hnsw_change_meta -- see hnsw_page.h. */
void
hnsw_change_meta(Relation index, const ItemPointerData *entry, int level, BlockNumber insert_block)
{
	Buffer		buffer = ReadBuffer(index, HNSW_META_BLOCK);
	GenericXLogState *state;
	HnswMeta   *meta;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	state = GenericXLogStart(index);
	meta = (HnswMeta *) PageGetContents(GenericXLogRegisterBuffer(state, buffer, 0));
	if (entry != NULL)
	{
		meta->entry_block = ItemPointerGetBlockNumberNoCheck(entry);
		meta->entry_offset = ItemPointerGetOffsetNumberNoCheck(entry);
		meta->entry_level = level;
	}
	if (insert_block != InvalidBlockNumber)
		meta->insert_block = insert_block;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buffer);
}
