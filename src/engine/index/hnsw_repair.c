/*-------------------------------------------------------------------------
 *
 * hnsw_repair.c
 *	  New links for elements of an HNSW graph whose neighbours have died.
 *
 * README.md says which elements are candidates, why that is enough, and why others may
 * change lists meanwhile.
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
#include "engine/index/hnsw_page.h"
#include "pace/pace.h"

static bool make_change(HnswScan *scan, BlockNumber blkno, OffsetNumber off, HnswChange *change);
static void choose_links(HnswScan *scan, const HnswChange *change, const char *query, int layer);
static void lead_back(HnswScan *scan, const HnswChange *change);
static bool is_first_visit(followed_hash *visited, const ItemPointerData *tid);
static bool is_same(const ItemPointerData *a, const ItemPointerData *b);
static void widen_beam(HnswScan *scan, const char *query, int layer, int most,
					   HnswNode *beam, int *nbeam);
static int	compare_nodes(const void *a, const void *b);
static void close_gaps(ItemPointerData *new, const ItemPointerData *old, int count, int start, int end);
static int	worst_link(HnswScan *scan, const HnswNode *host, int layer, const ItemPointerData *links,
					   const ItemPointerData *tid, const char *vector);

/*
 * hnsw_repair_page
 *		Repair the lists of the live elements of a page, of which the scan has a copy.
 *
 * A list that an insertion has changed meanwhile is done again.
 */
void
hnsw_repair_page(HnswScan *scan, BlockNumber blkno)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(scan->page.data);
	MemoryContext old_context = MemoryContextSwitchTo(scan->page_context);
	HnswChange *changes = palloc_array(HnswChange, maxoff);
	HnswChange *repaired = palloc_array(HnswChange, maxoff);
	int			nchanges = 0;
	int			nrepaired;

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
		nchanges += make_change(scan, blkno, off, &changes[nchanges]);
	memcpy(repaired, changes, nchanges * sizeof(HnswChange));
	nrepaired = nchanges;
	while ((nchanges = hnsw_write_lists(scan, changes, nchanges)) > 0)
	{
		int			nagain = 0;

		delay_point();
		for (int i = 0; i < nchanges; i++)
			nagain += make_change(scan, blkno, ItemPointerGetOffsetNumber(&changes[i].node.tid),
								  &changes[nagain]);
		nchanges = nagain;
	}
	scan->result.repaired += nrepaired;
	for (int i = 0; i < nrepaired; i++)
		lead_back(scan, &repaired[i]);
	MemoryContextSwitchTo(old_context);
	MemoryContextReset(scan->page_context);
}

/*
 * make_change
 *		Choose new links for an element of the page in hand; return false if it isn't live,
 *		or leads to no dead one.
 */
static bool
make_change(HnswScan *scan, BlockNumber blkno, OffsetNumber off, HnswChange *change)
{
	HnswElement *element = hnsw_element_at(scan->page.data, off);
	ItemPointerData links[HNSW_MAX_LINKS];
	MemoryContext old_context;

	if (!hnsw_is_live(element))
		return false;
	change->node = hnsw_node_of(element, blkno, off);
	change->count = hnsw_own_list(scan, &change->node, links);
	if (!hnsw_leads_to_dead(scan, links, change->count))
		return false;

	change->node.vector = element->vector;
	change->is_good = palloc0_array(bool, change->count);
	change->old = palloc_array(ItemPointerData, change->count);
	change->new = palloc_array(ItemPointerData, change->count);
	memcpy(change->old, links, change->count * sizeof(ItemPointerData));
	memcpy(change->new, links, change->count * sizeof(ItemPointerData));
	old_context = MemoryContextSwitchTo(scan->element_context);
	for (int layer = element->level; layer >= 0; layer--)
	{
		int			start = hnsw_layer_start(element->level, layer, scan->m);

		if (!hnsw_leads_to_dead(scan, &links[start], hnsw_layer_links(layer, scan->m)))
			continue;
		delay_point();
		choose_links(scan, change, element->vector, layer);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextReset(scan->element_context);
	return true;
}

/* hnsw_leads_to_dead -- does one of these links? */
bool
hnsw_leads_to_dead(HnswScan *scan, const ItemPointerData *links, int nlinks)
{
	for (int i = 0; i < nlinks; i++)
		if (ItemPointerIsValid(&links[i]) && hnsw_has_bit(scan, scan->dead, &links[i]))
			return true;
	return false;
}

/*
 * choose_links
 *		Choose new links on one layer for the element with this vector.
 *
 * Dead neighbours lead to others: those of the element itself always, and dead ones that
 * these lead to until there are as many candidates as there is room for.
 */
static void
choose_links(HnswScan *scan, const HnswChange *change, const char *query, int layer)
{
	int			start = hnsw_layer_start(change->node.level, layer, scan->m);
	int			room = hnsw_layer_links(layer, scan->m);
	ItemPointerData links[HNSW_MAX_LINKS];
	ItemPointerData *queue = palloc_array(ItemPointerData, scan->max_nodes);
	HnswNode  **chosen = palloc_array(HnswNode *, room);
	HnswNode	dead = change->node;
	int			nqueue = 0;
	int			nfirst = 0;
	int			nchosen;

	hnsw_forget_nodes(scan, &change->node.tid);
	/* the element comes first, and then what is in the queue */
	memcpy(links, change->old, change->count * sizeof(ItemPointerData));
	for (int next = 0;;)
	{
		const ItemPointerData *on_layer = &links[hnsw_layer_start(dead.level, layer, scan->m)];
		bool		is_first = next == 0;

		for (int i = 0; i < room; i++)
		{
			if (!ItemPointerIsValid(&on_layer[i]))
				continue;
			if (!hnsw_has_bit(scan, scan->dead, &on_layer[i]))
				hnsw_add_node(scan, &on_layer[i], layer, query);
			else if (nqueue < scan->max_nodes && is_first_visit(scan->seen, &on_layer[i]))
				queue[nqueue++] = on_layer[i];
		}
		if (is_first)
			nfirst = nqueue;
		while (next < nqueue && !(hnsw_read_node(scan, &queue[next], layer, NULL, &dead) &&
								  hnsw_read_list(scan, &dead, links) > 0))
			next++;
		if (next++ >= nqueue || scan->nnodes >= (next <= nfirst ? scan->max_nodes : room))
			break;
	}
	if (scan->nnodes < room / 2)
		hnsw_search(scan, query, layer, true);

	nchosen = hnsw_choose(scan, room, chosen);
	for (int i = 0; i < room; i++)
	{
		change->is_good[start + i] = i < nchosen && chosen[i]->is_good;
		if (i < nchosen)
			change->new[start + i] = chosen[i]->tid;
		else
			ItemPointerSetInvalid(&change->new[start + i]);
	}
}

/*
 * lead_back
 *		Have the best of those that an element newly leads to lead back to it, if an
 *		insertion would have them do so.
 */
static void
lead_back(HnswScan *scan, const HnswChange *change)
{
	for (int layer = change->node.level; layer >= 0; layer--)
	{
		int			start = hnsw_layer_start(change->node.level, layer, scan->m);
		int			room = hnsw_layer_links(layer, scan->m);

		for (int i = start; i < start + room; i++)
		{
			MemoryContext old_context;
			ItemPointerData replaced;
			HnswNode	host;
			bool		is_new = change->is_good[i];

			for (int j = start; j < start + room && is_new; j++)
				is_new = !is_same(&change->old[j], &change->new[i]);
			if (!is_new)
				continue;
			delay_point();
			old_context = MemoryContextSwitchTo(scan->element_context);
			if (hnsw_read_node(scan, &change->new[i], layer, change->node.vector, &host))
				(void) hnsw_put_link(scan, &host, layer, &change->node.tid,
									 change->node.vector, &replaced);
			MemoryContextSwitchTo(old_context);
			MemoryContextReset(scan->element_context);
		}
	}
}

/* is_first_visit -- note a place; has it not been there before? */
static bool
is_first_visit(followed_hash *visited, const ItemPointerData *tid)
{
	uint64		key = (uint64) ItemPointerGetBlockNumberNoCheck(tid) << 16 |
		ItemPointerGetOffsetNumberNoCheck(tid);
	bool		found;

	(void) followed_insert(visited, key, &found);
	return !found;
}

/* is_same -- are these the same place, or both invalid? */
static bool
is_same(const ItemPointerData *a, const ItemPointerData *b)
{
	return memcmp(a, b, sizeof(ItemPointerData)) == 0;
}

/* hnsw_forget_nodes -- no candidates yet, for the element at this place. */
void
hnsw_forget_nodes(HnswScan *scan, const ItemPointerData *self)
{
	scan->nnodes = 0;
	followed_reset(scan->seen);
	(void) is_first_visit(scan->seen, self);
}

/* hnsw_add_node -- add what a link leads to to the candidates, if it is a live element of this layer. */
void
hnsw_add_node(HnswScan *scan, const ItemPointerData *tid, int layer, const char *query)
{
	HnswNode   *node = &scan->nodes[scan->nnodes];

	if (scan->nnodes < scan->max_nodes && is_first_visit(scan->seen, tid) &&
		hnsw_read_node(scan, tid, layer, query, node) && node->is_live)
		scan->nnodes++;
}

/*
 * hnsw_search
 *		Search a layer from the entry point, as a rule by the layers above, and add what is
 *		found to the candidates.
 */
void
hnsw_search(HnswScan *scan, const char *query, int layer, bool by_upper_layers)
{
	HnswNode   *beam;
	HnswMeta	meta;
	ItemPointerData entry;
	int			nbeam = 1;

	hnsw_read_meta(scan->base.index, &meta);
	if (meta.entry_block == InvalidBlockNumber)
		return;
	beam = palloc_array(HnswNode, scan->hnsw->ef + 1);
	ItemPointerSet(&entry, meta.entry_block, meta.entry_offset);
	if (!hnsw_read_node(scan, &entry, layer, query, &beam[0]))
		return;
	scan->result.searched++;
	for (int upper = beam[0].level; upper > layer && by_upper_layers; upper--)
		widen_beam(scan, query, upper, 1, beam, &nbeam);
	widen_beam(scan, query, layer, scan->hnsw->ef, beam, &nbeam);
	for (int i = 0; i < nbeam; i++)
		if (beam[i].is_live && scan->nnodes < scan->max_nodes &&
			is_first_visit(scan->seen, &beam[i].tid))
			scan->nodes[scan->nnodes++] = beam[i];
}

/*
 * widen_beam
 *		Follow links on a layer, the nearest element's first, until the nearest ones that
 *		were found lead to no nearer ones; keep that many of them, in the order of distance.
 */
static void
widen_beam(HnswScan *scan, const char *query, int layer, int most,
		   HnswNode *beam, int *nbeam)
{
	ItemPointerData links[HNSW_MAX_LINKS];
	int			next = 0;

	followed_reset(scan->visited);
	for (int i = 0; i < *nbeam; i++)
	{
		beam[i].was_expanded = false;
		(void) is_first_visit(scan->visited, &beam[i].tid);
	}
	while (next < *nbeam)
	{
		int			start = hnsw_layer_start(beam[next].level, layer, scan->m);
		int			end = start + hnsw_layer_links(layer, scan->m);

		if (beam[next].was_expanded)
		{
			next++;
			continue;
		}
		CHECK_FOR_INTERRUPTS();
		beam[next].was_expanded = true;
		if (hnsw_read_list(scan, &beam[next], links) == 0)
			continue;
		for (int i = start; i < end && ItemPointerIsValid(&links[i]); i++)
		{
			HnswNode	node;
			int			place = *nbeam;

			if (!is_first_visit(scan->visited, &links[i]) ||
				!hnsw_read_node(scan, &links[i], layer, query, &node) ||
				(*nbeam >= most && node.distance >= beam[*nbeam - 1].distance))
				continue;
			while (place > 0 && beam[place - 1].distance > node.distance)
				place--;
			memmove(&beam[place + 1], &beam[place], (*nbeam - place) * sizeof(HnswNode));
			beam[place] = node;
			*nbeam = Min(*nbeam + 1, most);
			next = Min(next, place);
		}
	}
}

/*
 * hnsw_choose
 *		Choose up to this many neighbours among the candidates; return how many.
 *
 * As in an insertion (algorithm 4 of Malkov and Yashunin): the nearest candidates first,
 * those that are nearer to another one chosen only if there is room left, and none beyond
 * the number that an insertion would look at.
 */
int
hnsw_choose(HnswScan *scan, int most, HnswNode **chosen)
{
	HnswNode  **nodes = palloc_array(HnswNode *, scan->nnodes);
	int			nnodes = Min(scan->nnodes, Max(scan->hnsw->ef, most));
	int			nchosen = 0;

	for (int i = 0; i < scan->nnodes; i++)
		nodes[i] = &scan->nodes[i];
	qsort(nodes, scan->nnodes, sizeof(HnswNode *), compare_nodes);

	for (int i = 0; i < nnodes && nchosen < most; i++)
	{
		bool		is_good = true;

		for (int j = 0; j < nchosen && is_good && nnodes > most; j++)
			is_good = hnsw_distance(scan, nodes[i]->vector, chosen[j]->vector) > nodes[i]->distance;
		nodes[i]->is_good = is_good;
		if (is_good)
			chosen[nchosen++] = nodes[i];
	}
	for (int i = 0; i < nnodes && nchosen < most; i++)
		if (!nodes[i]->is_good)
			chosen[nchosen++] = nodes[i];
	return nchosen;
}

/* compare_nodes -- for qsort: by distance, and by place, so that the order is always the same. */
static int
compare_nodes(const void *a, const void *b)
{
	const HnswNode *node = *(HnswNode *const *) a;
	const HnswNode *other = *(HnswNode *const *) b;

	if (node->distance != other->distance)
		return node->distance < other->distance ? -1 : 1;
	return ItemPointerCompare((ItemPointer) &node->tid, (ItemPointer) &other->tid);
}

/* hnsw_put_link -- see hnsw_page.h.  A list that changes meanwhile is looked at again. */
bool
hnsw_put_link(HnswScan *scan, const HnswNode *host, int layer,
			  const ItemPointerData *tid, const char *vector, ItemPointerData *replaced)
{
	int			start = hnsw_layer_start(host->level, layer, scan->m);
	int			end = start + hnsw_layer_links(layer, scan->m);
	ItemPointerData old[HNSW_MAX_LINKS];
	ItemPointerData new[HNSW_MAX_LINKS];
	HnswChange	change = {.node = *host,.old = old,.new = new};
	int			place;

	do
	{
		bool		is_there = false;

		CHECK_FOR_INTERRUPTS();
		ItemPointerSetInvalid(replaced);
		change.count = hnsw_read_list(scan, host, old);
		if (change.count == 0)
			return false;
		close_gaps(new, old, change.count, start, end);
		place = -1;
		for (int i = start; i < end; i++)
		{
			is_there |= is_same(&new[i], tid);
			if (place < 0 &&
				(!ItemPointerIsValid(&new[i]) || hnsw_has_bit(scan, scan->dead, &new[i])))
				place = i;
		}
		if (is_there)
		{
			if (memcmp(new, old, change.count * sizeof(ItemPointerData)) == 0)
				return true;
			continue;
		}
		if (place < 0)
		{
			place = vector == NULL ? end - 1 :
				worst_link(scan, host, layer, &old[start], tid, vector);
			if (place < 0)
				return false;
			place += vector == NULL ? 0 : start;
			*replaced = old[place];
		}
		new[place] = *tid;
	} while (hnsw_write_lists(scan, &change, 1) > 0);
	return true;
}

/*
 * close_gaps
 *		Copy a list, one layer without gaps: a link after a free place isn't followed.
 *
 * An insertion leaves one if it has chosen a place in a list that was longer then.
 */
static void
close_gaps(ItemPointerData *new, const ItemPointerData *old, int count, int start, int end)
{
	int			next = start;

	memcpy(new, old, count * sizeof(ItemPointerData));
	for (int i = start; i < end; i++)
		if (ItemPointerIsValid(&old[i]))
			new[next++] = old[i];
	while (next < end)
		ItemPointerSetInvalid(&new[next++]);
}

/* worst_link -- which of its links would an element give up for one to another?  -1: none. */
static int
worst_link(HnswScan *scan, const HnswNode *host, int layer, const ItemPointerData *links,
		   const ItemPointerData *tid, const char *vector)
{
	int			room = hnsw_layer_links(layer, scan->m);
	HnswNode  **chosen = palloc_array(HnswNode *, room);
	int			nchosen;

	hnsw_forget_nodes(scan, &host->tid);
	for (int i = 0; i < room; i++)
		hnsw_add_node(scan, &links[i], layer, host->vector);
	scan->nodes[scan->nnodes++] = (HnswNode)
	{
		.tid = *tid,.distance = host->distance,.vector = unconstify(char *, vector)
	};
	nchosen = hnsw_choose(scan, room, chosen);
	for (int i = room - 1; i >= 0; i--)
	{
		bool		is_chosen = false;

		for (int j = 0; j < nchosen && !is_chosen; j++)
			is_chosen = is_same(&chosen[j]->tid, &links[i]);
		if (!is_chosen)
			return i;
	}
	return -1;
}
