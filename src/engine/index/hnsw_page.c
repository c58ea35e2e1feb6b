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
static bool block_exists(HnswScan *scan, BlockNumber blkno);
static bool is_sound_list(const HnswList *list, int level, int m, int version);
static HnswList *lock_list(HnswScan *scan, const ItemPointerData *tid, int level, int version,
						   Buffer *buffer);
static bool apply_change(Page page, const HnswChange *change);

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

/* hnsw_live_element_at -- see hnsw_page.h. */
HnswElement *
hnsw_live_element_at(Page page, OffsetNumber off)
{
	HnswElement *element = hnsw_element_at(page, off);

	return element != NULL && !element->deleted && ItemPointerIsValid(&element->rows[0]) ?
		element : NULL;
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

/* block_exists -- may a link lead there? */
static bool
block_exists(HnswScan *scan, BlockNumber blkno)
{
	if (likely(blkno >= HNSW_FIRST_BLOCK && blkno < scan->known_blocks))
		return true;
	if (blkno < HNSW_FIRST_BLOCK || blkno == InvalidBlockNumber)
		return false;
	scan->known_blocks = RelationGetNumberOfBlocks(scan->base.index);
	return blkno < scan->known_blocks;
}

/* is_sound_list -- is it the list of an element of this level and version? */
static bool
is_sound_list(const HnswList *list, int level, int m, int version)
{
	return list != NULL && list->count == (level + 2) * m && list->version == version;
}

/* lock_list -- an element's list on its page, locked for reading; NULL if that isn't there. */
static HnswList *
lock_list(HnswScan *scan, const ItemPointerData *tid, int level, int version, Buffer *buffer)
{
	HnswList   *list;

	*buffer = InvalidBuffer;
	if (!block_exists(scan, ItemPointerGetBlockNumberNoCheck(tid)))
		return NULL;
	*buffer = ReadBuffer(scan->base.index, ItemPointerGetBlockNumberNoCheck(tid));
	LockBuffer(*buffer, BUFFER_LOCK_SHARE);
	if (PageIsNew(BufferGetPage(*buffer)))
		return NULL;
	list = hnsw_list_at(BufferGetPage(*buffer), ItemPointerGetOffsetNumberNoCheck(tid));
	return is_sound_list(list, level, scan->m, version) ? list : NULL;
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

/* hnsw_copy_page -- copy a pinned page for this process, and release it; false if it is new. */
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
	UnlockReleaseBuffer(buffer);
	return !is_new;
}

/*
 * hnsw_read_node
 *		Read an element that a link leads to, if it may serve on a layer, and compute its
 *		distance; see hnsw_page.h.
 */
bool
hnsw_read_node(HnswScan *scan, const ItemPointerData *tid, int layer,
			   const char *query, HnswNode *node)
{
	Buffer		buffer;
	HnswElement *element = NULL;

	/* a link that can't be right is none */
	if (!block_exists(scan, ItemPointerGetBlockNumberNoCheck(tid)))
		return false;
	buffer = ReadBuffer(scan->base.index, ItemPointerGetBlockNumberNoCheck(tid));
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (!PageIsNew(BufferGetPage(buffer)))
		element = hnsw_element_at(BufferGetPage(buffer), ItemPointerGetOffsetNumberNoCheck(tid));
	if (element == NULL || element->deleted || element->level < layer)
	{
		UnlockReleaseBuffer(buffer);
		return false;
	}
	node->tid = *tid;
	node->list = element->list;
	node->level = element->level;
	node->version = element->version;
	node->is_live = ItemPointerIsValid(&element->rows[0]);
	node->is_good = node->was_expanded = false;
	node->distance = 0;
	node->vector = NULL;
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
 * hnsw_read_links
 *		Read where an element leads to on a layer; return to how many others.
 *
 * An element that was used anew meanwhile leads nowhere: its list has another version.
 */
int
hnsw_read_links(HnswScan *scan, const HnswNode *node, int layer, ItemPointerData *links)
{
	int			start = hnsw_layer_start(node->level, layer, scan->m);
	int			nlinks = 0;
	Buffer		buffer;
	HnswList   *list = lock_list(scan, &node->list, node->level, node->version, &buffer);

	for (int i = 0; list != NULL && i < hnsw_layer_links(layer, scan->m); i++)
		if (ItemPointerIsValid(&list->links[start + i]))
			links[nlinks++] = list->links[start + i];
	if (BufferIsValid(buffer))
		UnlockReleaseBuffer(buffer);
	return nlinks;
}

/* hnsw_all_links -- see hnsw_page.h; *links is palloc'd. */
int
hnsw_all_links(HnswScan *scan, const HnswNode *node, ItemPointerData **links)
{
	Buffer		buffer;
	HnswList   *list = lock_list(scan, &node->list, node->level, node->version, &buffer);
	int			count = list != NULL ? list->count : 0;

	*links = palloc_array(ItemPointerData, count);
	if (list != NULL)
		memcpy(*links, list->links, count * sizeof(ItemPointerData));
	if (BufferIsValid(buffer))
		UnlockReleaseBuffer(buffer);
	return count;
}

/*
 * hnsw_own_links
 *		The links of a live element of the page in hand, for all layers; see hnsw_page.h.
 *
 * An error if the list isn't the element's: the element must not keep links that we can't
 * see.
 */
int
hnsw_own_links(HnswScan *scan, BlockNumber blkno, const HnswElement *element,
			   ItemPointerData **links)
{
	HnswNode	node = {.list = element->list,.level = element->level,.version = element->version};
	int			count = (element->level + 2) * scan->m;

	if (ItemPointerGetBlockNumberNoCheck(&element->list) == blkno)
	{
		HnswList   *list = hnsw_list_at(scan->page.data,
										ItemPointerGetOffsetNumberNoCheck(&element->list));

		if (is_sound_list(list, element->level, scan->m, element->version))
		{
			*links = palloc_array(ItemPointerData, count);
			memcpy(*links, list->links, count * sizeof(ItemPointerData));
			return count;
		}
	}
	else if (hnsw_all_links(scan, &node, links) == count)
		return count;
	index_report_page(scan->base.index, blkno);
	return 0;
}

/* hnsw_distance -- by the operator class's function. */
float
hnsw_distance(HnswScan *scan, const char *a, const char *b)
{
	return (float) DatumGetFloat8(FunctionCall2Coll(scan->distance, scan->collation,
													PointerGetDatum(a), PointerGetDatum(b)));
}

/* hnsw_read_meta -- a copy of what the metapage says. */
void
hnsw_read_meta(Relation index, HnswMeta *meta)
{
	Buffer		buffer = ReadBuffer(index, HNSW_META_BLOCK);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(meta, PageGetContents(BufferGetPage(buffer)), sizeof(HnswMeta));
	UnlockReleaseBuffer(buffer);
	if (meta->magic != HNSW_MAGIC || meta->format != HNSW_FORMAT)
		index_report_page(index, HNSW_META_BLOCK);
}

/* hnsw_set_entry -- make this element the entry point; tid NULL: there is none.  No insertion is under way. */
void
hnsw_set_entry(Relation index, const ItemPointerData *tid, int level)
{
	Buffer		buffer = ReadBuffer(index, HNSW_META_BLOCK);
	GenericXLogState *state;
	HnswMeta   *meta;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	state = GenericXLogStart(index);
	meta = (HnswMeta *) PageGetContents(GenericXLogRegisterBuffer(state, buffer, 0));
	meta->entry_block = tid != NULL ? ItemPointerGetBlockNumber(tid) : InvalidBlockNumber;
	meta->entry_offset = tid != NULL ? ItemPointerGetOffsetNumber(tid) : InvalidOffsetNumber;
	meta->entry_level = tid != NULL ? level : -1;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buffer);
}

/* hnsw_set_insert_block -- have insertions look for room from this block on. */
void
hnsw_set_insert_block(Relation index, BlockNumber blkno)
{
	Buffer		buffer = ReadBuffer(index, HNSW_META_BLOCK);
	GenericXLogState *state;
	HnswMeta   *meta;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	state = GenericXLogStart(index);
	meta = (HnswMeta *) PageGetContents(GenericXLogRegisterBuffer(state, buffer, 0));
	meta->insert_block = blkno;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buffer);
}

/* apply_change -- write a list, if it is as it was. */
static bool
apply_change(Page page, const HnswChange *change)
{
	HnswList   *list = hnsw_list_at(page, ItemPointerGetOffsetNumber(&change->list));

	if (list == NULL || list->count != change->count || list->version != change->version ||
		memcmp(list->links, change->old, change->count * sizeof(ItemPointerData)) != 0)
		return false;
	memcpy(list->links, change->new, change->count * sizeof(ItemPointerData));
	return true;
}

/*
 * hnsw_change_lists
 *		Write the new contents of lists that still are as they were; return how many
 *		aren't, and move these to the beginning of the array.
 *
 * Lists on the same page that follow each other are written together.
 */
int
hnsw_change_lists(HnswScan *scan, HnswChange *changes, int nchanges)
{
	int			nleft = 0;
	int			next;

	for (int i = 0; i < nchanges; i = next)
	{
		BlockNumber blkno = ItemPointerGetBlockNumber(&changes[i].list);
		Buffer		buffer = ReadBuffer(scan->base.index, blkno);
		GenericXLogState *state;
		bool		changed = false;
		Page		page;

		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		state = GenericXLogStart(scan->base.index);
		page = GenericXLogRegisterBuffer(state, buffer, 0);
		for (next = i; next < nchanges && ItemPointerGetBlockNumber(&changes[next].list) == blkno;
			 next++)
		{
			if (apply_change(page, &changes[next]))
				changed = true;
			else
				changes[nleft++] = changes[next];
		}
		if (changed)
			GenericXLogFinish(state);
		else
			GenericXLogAbort(state);
		UnlockReleaseBuffer(buffer);
	}
	return nleft;
}
