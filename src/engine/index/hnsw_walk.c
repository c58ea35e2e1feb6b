/*-------------------------------------------------------------------------
 *
 * hnsw_walk.c
 *	  Which live elements of an HNSW graph can be reached, and links to those that can't.
 *
 * The member that comes first walks over layer 0 from the entry point.  The others follow
 * links of what it has reached, where they come by it.
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

static void link_element(HnswScan *scan, const HnswNode *self, const char *vector);

/*
 * hnsw_confirm_page
 *		Tell the leader if a live element of the page in hand leads to a dead one; and go on
 *		with the walk, from those that are reached.
 */
void
hnsw_confirm_page(HnswScan *scan, BlockNumber blkno)
{
	ItemPointerData links[HNSW_MAX_LINKS];

	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(scan->page.data); off++)
	{
		HnswElement *element = hnsw_element_at(scan->page.data, off);
		HnswNode	node;
		int			count;

		if (!hnsw_is_live(element))
			continue;
		node = hnsw_node_of(element, blkno, off);
		count = hnsw_own_list(scan, &node, links);
		if (hnsw_leads_to_dead(scan, links, count))
			pg_atomic_fetch_add_u64(&scan->hnsw->unconfirmed, 1);
		/* what came later isn't in the set, and is taken for reached */
		if (blkno < scan->hnsw->nblocks && !hnsw_has_bit(scan->hnsw, HNSW_REACHED, &node.tid))
			continue;
		for (int i = count - 2 * scan->m; i < count && ItemPointerIsValid(&links[i]); i++)
			hnsw_reach_from(scan, &links[i]);
	}
}

/*
 * hnsw_reach_from
 *		If an element isn't known to be reached, but is, note all that can be reached through
 *		it: searches follow links of layer 0, which comes last, up to the first free place.
 */
void
hnsw_reach_from(HnswScan *scan, const ItemPointerData *tid)
{
	ItemPointerData links[HNSW_MAX_LINKS];
	Size		size = 1024;
	Size		npending = 1;
	ItemPointerData *pending;

	if (!hnsw_set_bit(scan->hnsw, HNSW_REACHED, tid))
		return;
	pending = palloc_array(ItemPointerData, size);
	pending[0] = *tid;
	while (npending > 0)
	{
		ItemPointerData next = pending[--npending];
		HnswNode	node;
		int			count;

		delay_point();
		failsafe_notice(scan->base.vacuum);
		if (!hnsw_read_node(scan, &next, 0, NULL, &node))
			continue;
		count = hnsw_read_list(scan, &node, links);
		for (int i = Max(count - 2 * scan->m, 0); i < count && ItemPointerIsValid(&links[i]); i++)
		{
			if (!hnsw_set_bit(scan->hnsw, HNSW_REACHED, &links[i]))
				continue;
			if (npending == size)
				pending = repalloc_huge(pending, (size *= 2) * sizeof(ItemPointerData));
			pending[npending++] = links[i];
		}
	}
	pfree(pending);
}

/* hnsw_link_page -- see to it that each live element of the page in hand is reached. */
void
hnsw_link_page(HnswScan *scan, BlockNumber blkno)
{
	for (OffsetNumber off = FirstOffsetNumber; off <= PageGetMaxOffsetNumber(scan->page.data); off++)
	{
		HnswElement *element = hnsw_element_at(scan->page.data, off);
		MemoryContext old_context;
		HnswNode	self;

		if (!hnsw_is_live(element))
			continue;
		self = hnsw_node_of(element, blkno, off);
		if (hnsw_has_bit(scan->hnsw, HNSW_REACHED, &self.tid))
			continue;
		DEBUG_POINT("hnsw-link");
		delay_point();
		old_context = MemoryContextSwitchTo(scan->element_context);
		link_element(scan, &self, element->vector);
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(scan->element_context);
	}
}

/*
 * link_element
 *		Link a live element that isn't reached from the nearest one that is, the host, and
 *		note what is reached through it.  The host is a neighbour, or found by a search; or the
 *		entry point, which always is reached.
 *
 * If the element takes the place of another one in the host's list, it leads to that one
 * instead.  It can give up a link for that, as nothing that is reached depends on where it
 * leads to.  Members do this in turns: what one has noted another one can rely on.
 */
static void
link_element(HnswScan *scan, const HnswNode *self, const char *vector)
{
	ItemPointerData links[HNSW_MAX_LINKS];
	int			count = hnsw_own_list(scan, self, links);
	const HnswNode *host = NULL;
	ItemPointerData replaced,
				ignored;

	hnsw_forget_nodes(scan, &self->tid);
	for (int i = count - 2 * scan->m; i < count; i++)
		if (hnsw_has_bit(scan->hnsw, HNSW_REACHED, &links[i]))
			hnsw_add_node(scan, &links[i], 0, vector);
	if (scan->nnodes == 0)
	{
		hnsw_add_node(scan, &scan->hnsw->entry, 0, vector);
		hnsw_search(scan, vector, 0);
	}
	(void) index_take_turn(scan->base.shared, true);
	for (int i = 0; i < scan->nnodes; i++)
		if (hnsw_has_bit(scan->hnsw, HNSW_REACHED, &scan->nodes[i].tid) &&
			(host == NULL || scan->nodes[i].distance < host->distance))
			host = &scan->nodes[i];
	/* another member may have linked it, or one that leads to it */
	if (host != NULL && !hnsw_has_bit(scan->hnsw, HNSW_REACHED, &self->tid) &&
		hnsw_put_link(scan, host, 0, &self->tid, NULL, &replaced))
	{
		(void) hnsw_put_link(scan, self, 0, &host->tid, NULL, &ignored);
		if (ItemPointerIsValid(&replaced))
			(void) hnsw_put_link(scan, self, 0, &replaced, NULL, &ignored);
		scan->result.linked++;
		hnsw_reach_from(scan, &self->tid);
	}
	index_end_turn(scan->base.shared);
}
