/*-------------------------------------------------------------------------
 *
 * hnsw_page.h
 *	  What is on the pages of pgvector's HNSW indexes, and one process's part of
 *	  such an index.
 *
 * The structs are the layout of pgvector 0.8, which declares them in no header that an
 * extension could include.  hnsw_library.c sees to it that an index has this layout.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_HNSW_PAGE_H
#define CYCLONE_HNSW_PAGE_H

#include "fmgr.h"
#include "storage/itemptr.h"

#include "engine/index/index_kind.h"

#define HNSW_MAGIC			0xA953A953
#define HNSW_FORMAT			1
#define HNSW_PAGE_ID		0xFF90
#define HNSW_META_BLOCK		0
#define HNSW_FIRST_BLOCK	1

/*
 * Heavyweight locks on these pages: an insertion holds the first from beginning to end,
 * shared, or exclusively if it is to change the entry point; a search holds the second,
 * shared, while it follows links.
 */
#define HNSW_INSERTS		0
#define HNSW_SEARCHES		1

#define HNSW_MIN_M			2
#define HNSW_MAX_M			100
/* rows with the same vector that one element stands for */
#define HNSW_ROWS			10

typedef struct HnswMeta
{
	uint32		magic;
	uint32		format;
	uint32		dimensions;
	uint16		m;
	uint16		ef_construction;
	BlockNumber entry_block;	/* invalid: the graph is empty */
	OffsetNumber entry_offset;
	int16		entry_level;
	BlockNumber insert_block;	/* where an insertion begins to look for room */
} HnswMeta;

typedef struct HnswOpaque
{
	BlockNumber next;			/* all pages but the first are a chain */
	uint16		unused;
	uint16		page_id;
} HnswOpaque;

#define HNSW_IS_ELEMENT		1
#define HNSW_IS_LIST		2

typedef struct HnswElement
{
	uint8		type;
	uint8		level;			/* its highest layer */
	uint8		deleted;		/* no link leads here; it may be used again */
	uint8		version;		/* changes when it is deleted */
	ItemPointerData rows[HNSW_ROWS];	/* up to the first invalid one */
	ItemPointerData list;
	uint16		unused;
	char		vector[FLEXIBLE_ARRAY_MEMBER];	/* a varlena, 4 bytes of header */
} HnswElement;

/* An element's links: m a layer, from its level down, and 2 * m on layer 0 */
typedef struct HnswList
{
	uint8		type;
	uint8		version;		/* the element's */
	uint16		count;
	ItemPointerData links[FLEXIBLE_ARRAY_MEMBER];	/* invalid ones come last */
} HnswList;

#define HNSW_VECTOR_AT		offsetof(HnswElement, vector)
#define HNSW_LINKS_AT		offsetof(HnswList, links)
/* no list has more links than a page has room for */
#define HNSW_MAX_LINKS		(BLCKSZ / sizeof(ItemPointerData))

/* What is being done to an index: each stage by all members, and one after the other */
typedef enum HnswStage
{
	HNSW_REMOVE,				/* TIDs of dead items are taken out */
	HNSW_REPAIR,				/* links of live elements lead to live ones */
	HNSW_CONFIRM,				/* all do; and which elements can be reached? */
	HNSW_MARK,					/* elements without rows are marked deleted; links to
								 * those that can't be reached */
	HNSW_DONE,
} HnswStage;

/* Sets of places on pages: for each block that the index had at first a bit an offset */
typedef enum HnswSet
{
	HNSW_DEAD,					/* elements without rows */
	HNSW_REACHED,				/* what links lead to from the entry point */
	HNSW_SETS
} HnswSet;

/* What the team shares of one index */
typedef struct HnswShared
{
	int			m;
	int			ef;				/* candidates that an insertion chooses from */
	BlockNumber nblocks;		/* that the sets are for */
	uint32		words_a_block;

	/* written by the leader between phases */
	HnswStage	stage;
	bool		rows_are_removed;	/* of all dead items, in HNSW_REMOVE */
	int			nmembers;
	ItemPointerData entry;		/* of HNSW_CONFIRM; invalid: the graph is empty */

	/* written by members */
	pg_atomic_uint64 ndead;		/* elements without rows, not marked deleted */
	pg_atomic_uint64 unconfirmed;	/* that lead to a dead element */
	/* under the index's mutex: */
	BlockNumber first_free;		/* with a deleted element */
	int			top_level;		/* of the live element with the most layers; or -1, */
	ItemPointerData top;		/* and invalid */

	pg_atomic_uint64 words[FLEXIBLE_ARRAY_MEMBER];	/* of the sets */
} HnswShared;

/* An element that was read: of a search, or a candidate for a link */
typedef struct HnswNode
{
	ItemPointerData tid;
	ItemPointerData list;
	uint8		level;
	uint8		version;
	bool		is_live;
	bool		is_good;		/* chosen not just because there was room */
	bool		was_there;		/* in the list in hand */
	bool		was_expanded;
	float		distance;		/* from the element in hand */
	char	   *vector;
} HnswNode;

/* One process's part of one index */
typedef struct HnswScan
{
	KindScan	base;
	HnswShared *hnsw;
	int			m;
	FmgrInfo   *distance;
	BlockNumber known_blocks;	/* the index has at least as many */
	int			top_level;		/* as in HnswShared, of what this one saw */
	ItemPointerData top;
	BlockNumber first_free;

	MemoryContext page_context; /* for one page */
	MemoryContext element_context;	/* for one element of it */
	followed_hash *seen;		/* candidates, and what they were found by */
	followed_hash *visited;		/* in a search */

	/* candidates for the layer in hand */
	HnswNode   *nodes;
	int			nnodes;
	int			max_nodes;

	PGAlignedBlock page;		/* a copy of the page in hand */
	GraphResult result;
} HnswScan;

/* A list's new contents */
typedef struct HnswChange
{
	HnswNode	node;			/* whose list it is */
	int			count;			/* of links, on all layers */
	ItemPointerData *old;		/* as they were when the new ones were chosen */
	ItemPointerData *new;
	bool	   *leads_back;		/* is a new one to lead to the element, too? */
} HnswChange;

/*
 * hnsw_page.c, reading.  hnsw_element_at and hnsw_list_at return NULL if there is no such
 * thing at this place of a page that is locked, or a copy.  hnsw_check_page raises an error
 * if a page is none of such an index.  hnsw_copy_page copies a pinned page to the scan; false
 * if it is new.
 *
 * hnsw_read_node reads an element that may serve on a layer; false if there is none.  With a
 * query it has its vector, palloc'd, and the distance.  hnsw_read_list reads all links of an
 * element, and returns how many places its list has; 0 if it hasn't this list any more.
 * hnsw_own_list is for a live element, whose list must be there.  hnsw_read_meta returns false
 * if the metapage isn't as it is in pgvector 0.8.
 */
extern HnswElement *hnsw_element_at(Page page, OffsetNumber off);
extern HnswList *hnsw_list_at(Page page, OffsetNumber off);
extern void hnsw_check_page(Relation index, Buffer buffer);
extern bool hnsw_copy_page(HnswScan *scan, Buffer buffer);
extern bool hnsw_read_node(HnswScan *scan, const ItemPointerData *tid, int layer,
						   const char *query, HnswNode *node);
extern int	hnsw_read_list(HnswScan *scan, const HnswNode *node, ItemPointerData *links);
extern int	hnsw_own_list(HnswScan *scan, const HnswNode *node, ItemPointerData *links);
extern float hnsw_distance(HnswScan *scan, const char *a, const char *b);
extern bool hnsw_read_meta(Relation index, HnswMeta *meta);
extern void hnsw_read_entry(Relation index, ItemPointerData *entry, int *level);

/*
 * Writing, with nothing locked.  hnsw_write_lists writes lists that still are as they were, and
 * returns how many aren't.  hnsw_change_meta sets the entry point, unless it is NULL, while no
 * insertion is under way (an invalid place, and level -1, if there is no element); and where
 * insertions look for room, unless that is invalid.
 */
extern int	hnsw_write_lists(HnswScan *scan, const HnswChange *changes, int nchanges);
extern void hnsw_change_meta(Relation index, const ItemPointerData *entry, int level,
							 BlockNumber insert_block);

/*
 * hnsw_repair.c.  hnsw_put_link has an element lead to another one on a layer, in a free
 * place or one of a dead element.  Else it replaces the link that the element would give up
 * for it, given the other one's vector; or the last one, without: *replaced is that then, and
 * invalid otherwise.  Return false if nothing was done.
 */
extern void hnsw_repair_page(HnswScan *scan, BlockNumber blkno);
extern bool hnsw_leads_to_dead(HnswScan *scan, const ItemPointerData *links, int nlinks);
extern void hnsw_forget_nodes(HnswScan *scan, const ItemPointerData *self);
extern void hnsw_add_node(HnswScan *scan, const ItemPointerData *tid, int layer,
						  const char *query);
extern void hnsw_search(HnswScan *scan, const char *query, int layer);
extern bool hnsw_put_link(HnswScan *scan, const HnswNode *host, int layer,
						  const ItemPointerData *tid, const char *vector,
						  ItemPointerData *replaced);

/* hnsw_walk.c: of the page in hand; and a part of the walk, from an element that is reached */
extern void hnsw_confirm_page(HnswScan *scan, BlockNumber blkno);
extern void hnsw_link_page(HnswScan *scan, BlockNumber blkno);
extern void hnsw_reach_from(HnswScan *scan, const ItemPointerData *tid);

/* hnsw_library.c: is this an index of pgvector, of a version that we know?  If not, why? */
extern bool hnsw_is_ours(Relation index, const char **reason);

/* hnsw_is_live -- does an element, or NULL, stand for rows? */
static inline bool
hnsw_is_live(const HnswElement *element)
{
	return element != NULL && !element->deleted && ItemPointerIsValid(&element->rows[0]);
}

/* hnsw_note_top -- remember the live element with the most layers. */
static inline void
hnsw_note_top(HnswScan *scan, int level, const ItemPointerData *tid)
{
	if (level <= scan->top_level)
		return;
	scan->top_level = level;
	scan->top = *tid;
}

/* hnsw_node_of -- an element of a page, without its vector. */
static inline HnswNode
hnsw_node_of(const HnswElement *element, BlockNumber blkno, OffsetNumber off)
{
	HnswNode	node = {.list = element->list,.level = element->level,.version = element->version};

	ItemPointerSet(&node.tid, blkno, off);
	node.is_live = hnsw_is_live(element);
	return node;
}

/* hnsw_layer_start -- where a layer begins in a list, which has them from the element's level down. */
static inline int
hnsw_layer_start(int level, int layer, int m)
{
	return (level - layer) * m;
}

/* hnsw_layer_links -- how many links an element may have on a layer. */
static inline int
hnsw_layer_links(int layer, int m)
{
	return layer == 0 ? 2 * m : m;
}

/* hnsw_bit -- where the bit of a place is; NULL if the sets don't have it. */
static inline pg_atomic_uint64 *
hnsw_bit(HnswShared *hnsw, HnswSet set, const ItemPointerData *tid, uint64 *mask)
{
	BlockNumber blkno = ItemPointerGetBlockNumberNoCheck(tid);
	uint32		bit = ItemPointerGetOffsetNumberNoCheck(tid) - 1;

	if (blkno >= hnsw->nblocks || bit >= hnsw->words_a_block * 64)
		return NULL;
	*mask = UINT64CONST(1) << (bit % 64);
	return &hnsw->words[((Size) set * hnsw->nblocks + blkno) * hnsw->words_a_block + bit / 64];
}

/* hnsw_has_bit -- is a place in a set? */
static inline bool
hnsw_has_bit(HnswShared *hnsw, HnswSet set, const ItemPointerData *tid)
{
	uint64		mask;
	pg_atomic_uint64 *word = hnsw_bit(hnsw, set, tid, &mask);

	return word != NULL && (pg_atomic_read_u64(word) & mask) != 0;
}

/* hnsw_set_bit -- add a place to a set; return false if it was there, or can't be. */
static inline bool
hnsw_set_bit(HnswShared *hnsw, HnswSet set, const ItemPointerData *tid)
{
	uint64		mask;
	pg_atomic_uint64 *word = hnsw_bit(hnsw, set, tid, &mask);

	return word != NULL && (pg_atomic_read_u64(word) & mask) == 0 &&
		(pg_atomic_fetch_or_u64(word, mask) & mask) == 0;
}

#endif							/* CYCLONE_HNSW_PAGE_H */
