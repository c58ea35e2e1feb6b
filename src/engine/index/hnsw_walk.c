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
static void search_hosts(HnswScan *scan, BlockNumber blkno, OffsetNumber off, const char *query);
static void fill_own_list(HnswScan *scan, const HnswNode *self, HnswNode **found, int nfound);
static bool link_from(HnswScan *scan, const HnswNode *host, const HnswNode *self);
static int	place_for(HnswScan *scan, const HnswChange *change, const ItemPointerData *tid);
static void lead_on(HnswScan *scan, const HnswNode *self, const ItemPointerData *tid);
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
 *		Link a live element of the page in hand that isn't reached from a near one that is,
 *		and note what is reached through it.
 *
 * The elements that it leads to are near it, so the nearest of them that is reached is to
 * lead to it.  If none is, the graph is searched, and the element gets links to what is
 * found.  Members take turns: what one has noted as reached another one can rely on.
 */
static void
link_element(HnswScan *scan, BlockNumber blkno, OffsetNumber off)
{
	HnswElement *element = hnsw_element_at(scan->page.data, off);
	HnswNode	self = {.list = element->list,.level = element->level,.version = element->version};
	HnswNode  **hosts;
	ItemPointerData *links;
	int			nlinks = hnsw_own_links(scan, blkno, element, &links);
	int			nhosts;
	bool		was_searched;
	bool		done = false;

	ItemPointerSet(&self.tid, blkno, off);
	hnsw_forget_nodes(scan, blkno, off);
	for (int i = nlinks - 2 * scan->m; i < nlinks; i++)
		if (ItemPointerIsValid(&links[i]) && hnsw_has_bit(scan, scan->reached, &links[i]))
			hnsw_add_node(scan, &links[i], 0, element->vector);
	was_searched = scan->nnodes == 0;
	if (was_searched)
		search_hosts(scan, blkno, off, element->vector);
	hosts = palloc_array(HnswNode *, 2 * scan->m);
	nhosts = hnsw_choose(scan, 2 * scan->m, hosts);

	(void) index_take_turn(scan->base.shared, true);
	if (!hnsw_has_bit(scan, scan->reached, &self.tid))
	{
		if (was_searched)
			fill_own_list(scan, &self, hosts, nhosts);
		for (int i = 0; i < nhosts && !done; i++)
			done = link_from(scan, hosts[i], &self);
		if (done)
		{
			scan->result.linked++;
			reach_from(scan, &self.tid);
		}
	}
	index_end_turn(scan->base.shared);
}

/*
 * search_hosts
 *		Search the graph for elements near one that isn't reached, and that are reached.
 *
 * Links of upper layers may lead to elements that those of layer 0 don't lead to.
 */
static void
search_hosts(HnswScan *scan, BlockNumber blkno, OffsetNumber off, const char *query)
{
	for (int upper = 1; upper >= 0 && scan->nnodes == 0; upper--)
	{
		int			nhosts = 0;

		hnsw_forget_nodes(scan, blkno, off);
		hnsw_search(scan, query, 0, upper > 0);
		for (int i = 0; i < scan->nnodes; i++)
			if (hnsw_has_bit(scan, scan->reached, &scan->nodes[i].tid))
				scan->nodes[nhosts++] = scan->nodes[i];
		scan->nnodes = nhosts;
	}
}

/* fill_own_list -- give an element that isn't reached, and leads to none that is, links to these. */
static void
fill_own_list(HnswScan *scan, const HnswNode *self, HnswNode **found, int nfound)
{
	HnswChange	change = {.list = self->list,.version = self->version};
	int			room = 2 * scan->m;

	do
	{
		change.count = hnsw_all_links(scan, self, &change.old);
		change.new = palloc_array(ItemPointerData, change.count);
		memcpy(change.new, change.old, change.count * sizeof(ItemPointerData));
		for (int i = 0; i < Min(nfound, room) && change.count >= room; i++)
			change.new[change.count - room + i] = found[i]->tid;
	} while (change.count >= room && hnsw_change_lists(scan, &change, 1) > 0);
}

/*
 * link_from
 *		Have a reached element, the host, lead to one that isn't; return false if it can't.
 *
 * If the host has no room, the element takes the place of another one in the host's list, and
 * leads to that one instead.  So all that was reached still is.  Nothing that is reached
 * depends on where the element leads to, so it can give up a link for that.
 */
static bool
link_from(HnswScan *scan, const HnswNode *host, const HnswNode *self)
{
	int			place;
	HnswChange	change = {.list = host->list,.version = host->version};

	do
	{
		delay_point();
		change.count = hnsw_all_links(scan, host, &change.old);
		if (change.count == 0)
			return false;
		place = place_for(scan, &change, &self->tid);
		if (place < 0)
			return true;
		change.new = palloc_array(ItemPointerData, change.count);
		memcpy(change.new, change.old, change.count * sizeof(ItemPointerData));
		change.new[place] = self->tid;
		/* a dead one may be left out */
		if (ItemPointerIsValid(&change.old[place]) && !hnsw_has_bit(scan, scan->dead, &change.old[place]))
			lead_on(scan, self, &change.old[place]);
	} while (hnsw_change_lists(scan, &change, 1) > 0);
	return true;
}

/* place_for -- where in a list a link can go: to a free place or the last one; -1 if it is there. */
static int
place_for(HnswScan *scan, const HnswChange *change, const ItemPointerData *tid)
{
	for (int i = change->count - 2 * scan->m; i < change->count; i++)
	{
		if (!ItemPointerIsValid(&change->old[i]))
			return i;
		if (ItemPointerEquals(&change->old[i], unconstify(ItemPointerData *, tid)))
			return -1;
	}
	return change->count - 1;
}

/* lead_on -- have an element that isn't reached lead to this one. */
static void
lead_on(HnswScan *scan, const HnswNode *self, const ItemPointerData *tid)
{
	HnswChange	change = {.list = self->list,.version = self->version};
	int			place;

	do
	{
		change.count = hnsw_all_links(scan, self, &change.old);
		if (change.count == 0)
			index_report_page(scan->base.index, ItemPointerGetBlockNumber(&self->tid));
		place = place_for(scan, &change, tid);
		if (place < 0)
			return;
		change.new = palloc_array(ItemPointerData, change.count);
		memcpy(change.new, change.old, change.count * sizeof(ItemPointerData));
		change.new[place] = *tid;
	} while (hnsw_change_lists(scan, &change, 1) > 0);
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
