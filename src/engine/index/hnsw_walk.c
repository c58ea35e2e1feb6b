/*-------------------------------------------------------------------------
 *
 * hnsw_walk.c
 *	  Which live elements of an HNSW graph can be reached, and links to those that can't.
 *
 * A walk over layer 0 goes over the blocks in their order, again and again: a reached
 * element passes that on to those that it leads to.  Blocks of which all elements have
 * done so are left out the next time.  It ends when nothing new is reached.  If that takes
 * many passes, as in a long graph, the last one follows each link at once.
 *
 * README.md says which links an element gets that isn't reached, and why all that is
 * reached stays so.
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

/* after so many passes links are followed at once */
#define MAX_PASSES	16

static bool pass_on(HnswScan *scan, const HnswNode *node, int *nreached);
static bool is_confirmed(HnswScan *scan, BlockNumber blkno);
static void link_element(HnswScan *scan, const HnswNode *self, const char *vector);
static void find_hosts(HnswScan *scan, const HnswNode *self, const char *vector);
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
	bool		is_done[MaxIndexTuplesPerPage + 1] = {false};
	bool		again = true;
	bool		all_done = true;
	int			nreached = 0;

	DEBUG_POINT("hnsw-walk");
	if (!hnsw_copy_page(scan, buffer))
		return;
	while (again)
	{
		again = false;
		all_done = true;
		for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(scan->page.data); off++)
		{
			HnswElement *element = hnsw_element_at(scan->page.data, off);
			HnswNode	node;

			if (is_done[off] || !hnsw_is_live(element))
				continue;
			node = hnsw_node_of(element, blkno, off);
			is_done[off] = !is_known || hnsw_has_bit(scan, scan->reached, &node.tid);
			if (is_done[off])
				again |= pass_on(scan, &node, &nreached);
			else
				all_done = false;
		}
	}
	if (is_known && all_done)
		pg_atomic_fetch_or_u64(&scan->settled[blkno / 64], UINT64CONST(1) << (blkno % 64));
	if (nreached > 0)
		pg_atomic_fetch_add_u64(&scan->hnsw->reached, nreached);
	if (scan->hnsw->stage == HNSW_CONFIRM && !is_confirmed(scan, blkno))
		hnsw_repair_page(scan, blkno);
}

/* pass_on -- an element is reached, so what it leads to is: count what newly is; is something on its page? */
static bool
pass_on(HnswScan *scan, const HnswNode *node, int *nreached)
{
	ItemPointerData links[HNSW_MAX_LINKS];
	int			count = hnsw_own_list(scan, node, links);
	bool		same_page = false;

	/* layer 0 comes last; searches go up to the first free place */
	for (int i = count - 2 * scan->m; i < count && ItemPointerIsValid(&links[i]); i++)
	{
		if (!hnsw_set_bit(scan, scan->reached, &links[i]))
			continue;
		(*nreached)++;
		same_page |= ItemPointerGetBlockNumber(&links[i]) == ItemPointerGetBlockNumber(&node->tid);
		if (scan->hnsw->passes >= MAX_PASSES)
			reach_from(scan, &links[i]);
	}
	return same_page;
}

/* is_confirmed -- does no live element of the page in hand lead to a dead one?  If one does, tell the leader. */
static bool
is_confirmed(HnswScan *scan, BlockNumber blkno)
{
	ItemPointerData links[HNSW_MAX_LINKS];
	bool		result = true;

	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(scan->page.data); off++)
	{
		HnswElement *element = hnsw_element_at(scan->page.data, off);
		HnswNode	node;

		if (!hnsw_is_live(element))
			continue;
		node = hnsw_node_of(element, blkno, off);
		if (!hnsw_leads_to_dead(scan, links, hnsw_own_list(scan, &node, links)))
			continue;
		pg_atomic_fetch_add_u64(&scan->hnsw->unconfirmed, 1);
		result = false;
	}
	return result;
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
		HnswElement *element = hnsw_element_at(scan->page.data, off);
		MemoryContext old_context;
		HnswNode	self;

		if (!hnsw_is_live(element))
			continue;
		self = hnsw_node_of(element, blkno, off);
		if (hnsw_has_bit(scan, scan->reached, &self.tid))
			continue;
		delay_point();
		old_context = MemoryContextSwitchTo(scan->element_context);
		link_element(scan, &self, element->vector);
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(scan->element_context);
	}
}

/*
 * link_element
 *		Link a live element that isn't reached from a near one that is, the host, and note
 *		what is reached through it.
 *
 * If the element takes the place of another one in the host's list, it leads to that one
 * instead.  It can give up a link for that, as nothing that is reached depends on where it
 * leads to.  Members do this in turns: what one has noted another one can rely on.
 */
static void
link_element(HnswScan *scan, const HnswNode *self, const char *vector)
{
	int			most = 2 * scan->m;
	HnswNode  **hosts = palloc_array(HnswNode *, most);
	ItemPointerData replaced,
				ignored;
	int			nhosts;

	find_hosts(scan, self, vector);
	nhosts = hnsw_choose(scan, most, hosts);
	(void) index_take_turn(scan->base.shared, true);
	if (nhosts == 0)
	{
		/* a search may have come to what a member has linked, and not noted yet */
		find_hosts(scan, self, vector);
		nhosts = hnsw_choose(scan, most, hosts);
	}
	for (int i = 0; i < nhosts && !hnsw_has_bit(scan, scan->reached, &self->tid); i++)
	{
		if (!hnsw_put_link(scan, hosts[i], 0, &self->tid, NULL, &replaced))
			continue;
		/* where it may have led nowhere, to others, too: the nearest comes last */
		for (int j = nhosts - 1; j >= 0; j--)
			(void) hnsw_put_link(scan, self, 0, &hosts[j]->tid, NULL, &ignored);
		if (ItemPointerIsValid(&replaced))
			(void) hnsw_put_link(scan, self, 0, &replaced, NULL, &ignored);
		scan->result.linked++;
		reach_from(scan, &self->tid);
	}
	index_end_turn(scan->base.shared);
}

/*
 * find_hosts
 *		Make those the candidates that may lead to an element: neighbours of its that are
 *		reached, or what a search finds that is.
 *
 * Links of upper layers may lead to elements that those of layer 0 don't lead to, so a second
 * search goes without them.
 */
static void
find_hosts(HnswScan *scan, const HnswNode *self, const char *vector)
{
	ItemPointerData links[HNSW_MAX_LINKS];
	int			count = hnsw_own_list(scan, self, links);

	hnsw_forget_nodes(scan, &self->tid);
	for (int i = count - 2 * scan->m; i < count; i++)
		if (ItemPointerIsValid(&links[i]) && hnsw_has_bit(scan, scan->reached, &links[i]))
			hnsw_add_node(scan, &links[i], 0, vector);
	for (int upper = 1; upper >= 0 && scan->nnodes == 0; upper--)
	{
		int			nhosts = 0;

		hnsw_forget_nodes(scan, &self->tid);
		hnsw_search(scan, vector, 0, upper > 0);
		for (int i = 0; i < scan->nnodes; i++)
			if (hnsw_has_bit(scan, scan->reached, &scan->nodes[i].tid))
				scan->nodes[nhosts++] = scan->nodes[i];
		scan->nnodes = nhosts;
	}
}

/* reach_from -- an element is reached now: note all that can be reached through it. */
static void
reach_from(HnswScan *scan, const ItemPointerData *tid)
{
	ItemPointerData links[HNSW_MAX_LINKS];
	Size		size = 1024;
	Size		npending = 1;
	ItemPointerData *pending = palloc_array(ItemPointerData, size);

	(void) hnsw_set_bit(scan, scan->reached, tid);
	pending[0] = *tid;
	while (npending > 0)
	{
		ItemPointerData next = pending[--npending];
		HnswNode	node;
		int			count;

		delay_point();
		if (!hnsw_read_node(scan, &next, 0, NULL, &node))
			continue;
		count = hnsw_read_list(scan, &node, links);
		for (int i = Max(count - 2 * scan->m, 0); i < count && ItemPointerIsValid(&links[i]); i++)
		{
			if (!hnsw_set_bit(scan, scan->reached, &links[i]))
				continue;
			if (npending == size)
				pending = repalloc_huge(pending, (size *= 2) * sizeof(ItemPointerData));
			pending[npending++] = links[i];
		}
	}
	pfree(pending);
}
