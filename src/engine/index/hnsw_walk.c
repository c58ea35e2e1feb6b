/*-------------------------------------------------------------------------
 *
 * hnsw_walk.c
 *	  Which live elements of an HNSW graph can be reached, and links to those that can't.
 *
 * A walk over layer 0 goes over the blocks in their order, again and again: a reached
 * element passes that on to those that it leads to.  Blocks of which all elements have
 * done so are left out the next time.  It ends when nothing new is reached.
 *
 * An element that isn't reached gets a link from a near one that is.  README.md says which
 * link it replaces, and why that makes no other element unreachable.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/index/hnsw_page.h"
#include "pace/pace.h"

/* An element of the page in hand */
typedef struct WalkElement
{
	ItemPointerData tid;
	ItemPointerData *links;		/* all layers */
	int			nlinks;
	bool		is_done;
} WalkElement;

static int	collect_elements(HnswScan *scan, BlockNumber blkno, WalkElement *elements);
static int	count_unconfirmed(HnswScan *scan, const WalkElement *elements, int nelements);
static int	pass_on(HnswScan *scan, BlockNumber blkno, const WalkElement *element, bool *again);
static void link_element(HnswScan *scan, BlockNumber blkno, OffsetNumber off);
static void fill_own_list(HnswScan *scan, const HnswElement *element,
						  ItemPointerData *links, int nlinks);
static bool link_from(HnswScan *scan, const HnswNode *host, const ItemPointerData *tid, bool at_any_rate);
static int	dispensable_link(HnswScan *scan, const ItemPointerData *links, int nlinks);
static void reach_from(HnswScan *scan, const ItemPointerData *tid);

/*
 * hnsw_visit_for_walk
 *		Pass on, from each element of a pinned page that is reached, that those are that
 *		it leads to; in HNSW_CONFIRM, see to it that no element leads to a dead one.
 */
void
hnsw_visit_for_walk(KindScan *base, Buffer buffer)
{
	HnswScan   *scan = (HnswScan *) base;
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	bool		is_known = blkno < scan->hnsw->nblocks;
	WalkElement *elements;
	MemoryContext old_context;
	int			nelements;
	int			nreached = 0;
	int			ndone = 0;
	bool		again;

	DEBUG_POINT("hnsw-walk");
	if (!hnsw_copy_page(scan, buffer))
		return;
	old_context = MemoryContextSwitchTo(scan->page_context);
	elements = palloc_array(WalkElement, PageGetMaxOffsetNumber(scan->page.data) + 1);
	nelements = collect_elements(scan, blkno, elements);
	do
	{
		again = false;
		for (int i = 0; i < nelements; i++)
		{
			if (elements[i].is_done ||
				(is_known && !hnsw_has_bit(scan, scan->reached, &elements[i].tid)))
				continue;
			elements[i].is_done = true;
			ndone++;
			nreached += pass_on(scan, blkno, &elements[i], &again);
		}
	} while (again);
	if (is_known && ndone == nelements)
		pg_atomic_fetch_or_u64(&scan->settled[blkno / 64], UINT64CONST(1) << (blkno % 64));
	if (nreached > 0)
		pg_atomic_fetch_add_u64(&scan->hnsw->reached, nreached);

	if (scan->hnsw->stage == HNSW_CONFIRM && count_unconfirmed(scan, elements, nelements) > 0)
	{
		MemoryContextSwitchTo(old_context);
		hnsw_repair_page(scan, blkno);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextReset(scan->page_context);
}

/* collect_elements -- the live elements of the page in hand; return how many. */
static int
collect_elements(HnswScan *scan, BlockNumber blkno, WalkElement *elements)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(scan->page.data);
	int			nelements = 0;

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		HnswElement *element = hnsw_live_element_at(scan->page.data, off);
		WalkElement *result = &elements[nelements];

		if (element == NULL)
			continue;
		ItemPointerSet(&result->tid, blkno, off);
		result->nlinks = hnsw_own_links(scan, blkno, element, &result->links);
		result->is_done = false;
		nelements++;
	}
	return nelements;
}

/* count_unconfirmed -- how many of these elements lead to a dead one?  Tell the leader, too. */
static int
count_unconfirmed(HnswScan *scan, const WalkElement *elements, int nelements)
{
	int			unconfirmed = 0;

	for (int i = 0; i < nelements; i++)
		for (int j = 0; j < elements[i].nlinks; j++)
			if (ItemPointerIsValid(&elements[i].links[j]) &&
				hnsw_has_bit(scan, scan->dead, &elements[i].links[j]))
			{
				unconfirmed++;
				break;
			}
	if (unconfirmed > 0)
		pg_atomic_fetch_add_u64(&scan->hnsw->unconfirmed, unconfirmed);
	return unconfirmed;
}

/* pass_on -- an element is reached: so are those that it leads to.  Return how many newly are. */
static int
pass_on(HnswScan *scan, BlockNumber blkno, const WalkElement *element, bool *again)
{
	int			nreached = 0;

	/* layer 0 comes last */
	for (int i = element->nlinks - 2 * scan->m; i < element->nlinks; i++)
	{
		const ItemPointerData *link = &element->links[i];

		if (!ItemPointerIsValid(link) || !hnsw_set_bit(scan, scan->reached, link))
			continue;
		nreached++;
		*again |= ItemPointerGetBlockNumber(link) == blkno;
	}
	return nreached;
}

/* hnsw_visit_for_link -- see to it that each live element of a pinned page is reached. */
void
hnsw_visit_for_link(KindScan *base, Buffer buffer)
{
	HnswScan   *scan = (HnswScan *) base;
	BlockNumber blkno = BufferGetBlockNumber(buffer);

	DEBUG_POINT("hnsw-link");
	if (!hnsw_copy_page(scan, buffer))
		return;
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(scan->page.data); off++)
	{
		MemoryContext old_context;
		ItemPointerData tid;

		ItemPointerSet(&tid, blkno, off);
		if (hnsw_live_element_at(scan->page.data, off) == NULL ||
			hnsw_has_bit(scan, scan->reached, &tid))
			continue;
		delay_point();
		old_context = MemoryContextSwitchTo(scan->element_context);
		link_element(scan, blkno, off);
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(scan->element_context);
	}
}

/*
 * link_element
 *		Link a live element of the page in hand that isn't reached from one that is, and
 *		note what is reached through it.
 *
 * The elements that it leads to are near it, so one of them is to lead to it.  If none of
 * these is reached either, the graph is searched, and the element gets links to what is found.
 */
static void
link_element(HnswScan *scan, BlockNumber blkno, OffsetNumber off)
{
	HnswElement *element = hnsw_element_at(scan->page.data, off);
	int			most = 2 * scan->m;
	ItemPointerData *links;
	ItemPointerData tid;
	HnswNode  **hosts;
	int			nlinks = hnsw_own_links(scan, blkno, element, &links);
	int			nhosts;
	bool		done = false;

	ItemPointerSet(&tid, blkno, off);
	hnsw_forget_nodes(scan, blkno, off);
	for (int i = nlinks - most; i < nlinks; i++)
		if (ItemPointerIsValid(&links[i]) && hnsw_has_bit(scan, scan->reached, &links[i]))
			hnsw_add_node(scan, &links[i], 0, element->vector);
	if (scan->nnodes == 0)
	{
		hnsw_search(scan, element->vector, 0);
		if (scan->nnodes == 0)
			return;
		fill_own_list(scan, element, links, nlinks);
	}

	hosts = palloc_array(HnswNode *, most);
	nhosts = hnsw_choose(scan, most, hosts);
	for (int i = 0; i < nhosts && !done; i++)
		done = link_from(scan, hosts[i], &tid, false);
	if (!done && nhosts > 0)
		done = link_from(scan, hosts[0], &tid, true);
	if (done)
	{
		scan->result.linked++;
		reach_from(scan, &tid);
	}
}

/* fill_own_list -- give an element links to the candidates, beside those that it has. */
static void
fill_own_list(HnswScan *scan, const HnswElement *element, ItemPointerData *links, int nlinks)
{
	int			room = 2 * scan->m;
	HnswNode  **chosen = palloc_array(HnswNode *, room);
	HnswChange	change = {.list = element->list,.version = element->version,.count = nlinks,.old = links};
	int			nchosen;

	for (int i = nlinks - room; i < nlinks; i++)
		if (ItemPointerIsValid(&links[i]))
			hnsw_add_node(scan, &links[i], 0, element->vector);
	nchosen = hnsw_choose(scan, room, chosen);
	change.new = palloc_array(ItemPointerData, nlinks);
	memcpy(change.new, links, nlinks * sizeof(ItemPointerData));
	for (int i = 0; i < room; i++)
	{
		if (i < nchosen)
			change.new[nlinks - room + i] = chosen[i]->tid;
		else
			ItemPointerSetInvalid(&change.new[nlinks - room + i]);
	}
	/* if an insertion has changed it, it has links to what is reached */
	(void) hnsw_change_lists(scan, &change, 1);
}

/*
 * link_from
 *		Have a reached element lead to this one, in turn; return false if it can't spare
 *		a link, unless it has to at any rate.
 */
static bool
link_from(HnswScan *scan, const HnswNode *host, const ItemPointerData *tid, bool at_any_rate)
{
	int			most = 2 * scan->m;
	int			place = -1;
	bool		done = false;

	(void) index_take_turn(scan->base.shared, true);
	for (int attempts = 0; attempts < 10 && !done; attempts++)
	{
		HnswChange	change = {.list = host->list,.version = host->version};
		int			nlinks;

		change.count = hnsw_all_links(scan, host, &change.old);
		nlinks = change.count - most;
		if (nlinks < 0)
			break;
		place = -1;
		for (int i = 0; i < most && place < 0; i++)
			if (!ItemPointerIsValid(&change.old[nlinks + i]))
				place = nlinks + i;
		if (place < 0)
		{
			int			dispensable = dispensable_link(scan, &change.old[nlinks], most);

			if (dispensable < 0 && !at_any_rate)
				break;
			if (dispensable < 0)
				pg_atomic_fetch_add_u64(&scan->hnsw->forced, 1);
			place = dispensable < 0 ? change.count - 1 : nlinks + dispensable;
		}
		change.new = palloc_array(ItemPointerData, change.count);
		memcpy(change.new, change.old, change.count * sizeof(ItemPointerData));
		change.new[place] = *tid;
		done = hnsw_change_lists(scan, &change, 1) == 0;
	}
	index_end_turn(scan->base.shared);
	return done;
}

/*
 * dispensable_link
 *		Which link leads to an element that another one of these leads to, too?  -1: none.
 *
 * The last ones are tried first: lists begin with those chosen first.
 */
static int
dispensable_link(HnswScan *scan, const ItemPointerData *links, int nlinks)
{
	ItemPointerData (*others)[HNSW_MAX_LINKS] = palloc(nlinks * sizeof(*others));
	int		   *nothers = palloc0_array(int, nlinks);

	for (int i = 0; i < nlinks; i++)
	{
		HnswNode	node;

		if (hnsw_read_node(scan, &links[i], 0, NULL, &node) && node.is_live)
			nothers[i] = hnsw_read_links(scan, &node, 0, others[i]);
	}
	for (int i = nlinks - 1; i >= 0; i--)
		for (int j = 0; j < nlinks; j++)
			for (int k = 0; j != i && k < nothers[j]; k++)
				if (ItemPointerEquals(&others[j][k], unconstify(ItemPointerData *, &links[i])))
					return i;
	return -1;
}

/* reach_from -- an element is reached now: note all that can be reached through it. */
static void
reach_from(HnswScan *scan, const ItemPointerData *tid)
{
	ItemPointerData links[HNSW_MAX_LINKS];
	int			size = 1024;
	int			npending = 1;
	ItemPointerData *pending = palloc_array(ItemPointerData, size);

	(void) hnsw_set_bit(scan, scan->reached, tid);
	pending[0] = *tid;
	while (npending > 0)
	{
		ItemPointerData next = pending[--npending];
		HnswNode	node;
		int			nlinks;

		delay_point();
		if (!hnsw_read_node(scan, &next, 0, NULL, &node))
			continue;
		nlinks = hnsw_read_links(scan, &node, 0, links);
		for (int i = 0; i < nlinks; i++)
		{
			if (!hnsw_set_bit(scan, scan->reached, &links[i]))
				continue;
			if (npending == size)
				pending = repalloc_array(pending, ItemPointerData, size *= 2);
			pending[npending++] = links[i];
		}
	}
}
