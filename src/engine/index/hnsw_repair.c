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
#include "debug_point.h"
#include "engine/index/hnsw_page.h"
#include "pace/pace.h"

static bool make_change(HnswScan *scan, BlockNumber blkno, OffsetNumber off, HnswChange *change);
static void choose_links(HnswScan *scan, const HnswChange *change, const char *query, int layer);
static void place_links(const HnswChange *change, int start, int end, HnswNode **chosen, int nchosen,
						bool all_lead_back);
static void lead_back(HnswScan *scan, const HnswChange *change);
static int	choose_nodes(HnswScan *scan, int most, HnswNode **chosen);
static bool is_first_visit(followed_hash *visited, const ItemPointerData *tid);
static bool is_same(const ItemPointerData *a, const ItemPointerData *b);
static void widen_beam(HnswScan *scan, const char *query, int layer, int most,
					   HnswNode *beam, int *nbeam);
static int	compare_nodes(const void *a, const void *b);
static void close_gaps(ItemPointerData *links, int start, int end);
static int	worst_link(HnswScan *scan, const HnswNode *host, int layer, const ItemPointerData *links,
					   int start, const ItemPointerData *tid, const char *vector);

/*
 * hnsw_repair_page
 *		Repair the lists of the live elements of the page in hand.
 *
 * A list that an insertion has changed meanwhile is done again.
 */
void
hnsw_repair_page(HnswScan *scan, BlockNumber blkno)
{
	OffsetNumber maxoff = PageGetMaxOffsetNumber(scan->page.data);
	MemoryContext old_context = MemoryContextSwitchTo(scan->page_context);
	HnswChange *changes = palloc_array(HnswChange, maxoff);
	int			nchanges;
	int			nleft;

	do
	{
		nchanges = 0;
		delay_point();
		for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
			nchanges += make_change(scan, blkno, off, &changes[nchanges]);
		nleft = hnsw_write_lists(scan, changes, nchanges);
		scan->result.repaired += nchanges - nleft;
		for (int i = 0; i < nchanges; i++)
			lead_back(scan, &changes[i]);
	} while (nleft > 0);
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
	hnsw_note_top(scan, element->level, &change->node.tid);
	change->count = hnsw_own_list(scan, &change->node, links);
	if (!hnsw_leads_to_dead(scan, links, change->count))
		return false;

	change->node.vector = element->vector;
	change->leads_back = palloc0_array(bool, change->count);
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
		if (hnsw_has_bit(scan->hnsw, HNSW_DEAD, &links[i]) && !DEBUG_FAULT("hnsw-links"))
			return true;
	return false;
}

/*
 * choose_links
 *		Choose new links on one layer for the element with this vector: among those that it
 *		has, and those of its dead neighbours; if many of these died, by a search, too.
 */
static void
choose_links(HnswScan *scan, const HnswChange *change, const char *query, int layer)
{
	int			start = hnsw_layer_start(change->node.level, layer, scan->m);
	int			room = hnsw_layer_links(layer, scan->m);
	ItemPointerData links[HNSW_MAX_LINKS];
	HnswNode  **chosen = palloc_array(HnswNode *, room);
	bool		many_died;
	int			ndead = 0;
	int			nchosen;

	hnsw_forget_nodes(scan, &change->node.tid);
	for (int i = start; i < start + room; i++)
	{
		hnsw_add_node(scan, &change->old[i], layer, query);
		ndead += hnsw_has_bit(scan->hnsw, HNSW_DEAD, &change->old[i]);
	}
	/* a quarter: the nearest may be farther off now, and fewer lead here */
	many_died = 3 * ndead > scan->nnodes;
	if (many_died)
		hnsw_search(scan, query, layer);
	for (int i = start; i < start + room; i++)
	{
		HnswNode	dead;
		int			first;

		if (!hnsw_has_bit(scan->hnsw, HNSW_DEAD, &change->old[i]) ||
			!hnsw_read_node(scan, &change->old[i], layer, NULL, &dead) ||
			hnsw_read_list(scan, &dead, links) == 0)
			continue;
		first = hnsw_layer_start(dead.level, layer, scan->m);
		for (int j = first; j < first + room; j++)
			hnsw_add_node(scan, &links[j], layer, query);
	}
	if (scan->nnodes < room / 2 && !many_died)
		hnsw_search(scan, query, layer);
	nchosen = choose_nodes(scan, room, chosen);
	place_links(change, start, start + room, chosen, nchosen, many_died);
}

/*
 * place_links
 *		Put those that were chosen into the list: each that was there stays in its place, so
 *		that little is logged.
 */
static void
place_links(const HnswChange *change, int start, int end, HnswNode **chosen, int nchosen,
			bool all_lead_back)
{
	ItemPointerData *new = change->new;
	int			place = start;

	for (int i = start; i < end; i++)
	{
		int			found = 0;

		while (found < nchosen && !is_same(&chosen[found]->tid, &change->old[i]))
			found++;
		if (found < nchosen && !chosen[found]->was_there)
			chosen[found]->was_there = true;
		else
			ItemPointerSetInvalid(&new[i]);
	}
	for (int i = 0; i < nchosen; i++)
	{
		if (chosen[i]->was_there)
			continue;
		while (ItemPointerIsValid(&new[place]))
			place++;
		new[place] = chosen[i]->tid;
		change->leads_back[place] = chosen[i]->is_good || all_lead_back;
	}
	close_gaps(new, start, end);
}

/*
 * lead_back
 *		Have the best of those that an element newly leads to lead back to it, if an
 *		insertion would have them do so.
 */
static void
lead_back(HnswScan *scan, const HnswChange *change)
{
	for (int i = 0; i < change->count; i++)
	{
		int			layer = Max(change->node.level - i / scan->m, 0);
		MemoryContext old_context;
		ItemPointerData replaced;
		HnswNode	host;

		if (!change->leads_back[i])
			continue;
		delay_point();
		old_context = MemoryContextSwitchTo(scan->element_context);
		if (hnsw_read_node(scan, &change->new[i], layer, change->node.vector, &host))
			(void) hnsw_put_link(scan, &host, layer, &change->node.tid, change->node.vector,
								 &replaced);
		MemoryContextSwitchTo(old_context);
		MemoryContextReset(scan->element_context);
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

	if (ItemPointerIsValid(tid) && scan->nnodes < scan->max_nodes &&
		!hnsw_has_bit(scan->hnsw, HNSW_DEAD, tid) && is_first_visit(scan->seen, tid) &&
		hnsw_read_node(scan, tid, layer, query, node) && node->is_live)
		scan->nnodes++;
}

/* hnsw_search -- search a layer from the entry point, and add what is found to the candidates. */
void
hnsw_search(HnswScan *scan, const char *query, int layer)
{
	HnswNode   *beam;
	ItemPointerData entry;
	int			level;
	int			nbeam = 1;

	beam = palloc_array(HnswNode, scan->hnsw->ef + 1);
	hnsw_read_entry(scan->base.index, &entry, &level);
	if (!hnsw_read_node(scan, &entry, layer, query, &beam[0]))
		return;
	scan->result.searched++;
	for (int upper = beam[0].level; upper > layer; upper--)
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
 * choose_nodes
 *		Choose up to this many neighbours among the candidates; return how many.
 *
 * As in an insertion (algorithm 4 of Malkov and Yashunin): the nearest candidates first,
 * those that are nearer to another one chosen only if there is room left, and none beyond
 * the number that an insertion would look at.
 */
static int
choose_nodes(HnswScan *scan, int most, HnswNode **chosen)
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

	do
	{
		int			place = end;

		CHECK_FOR_INTERRUPTS();
		ItemPointerSetInvalid(replaced);
		change.count = hnsw_read_list(scan, host, old);
		if (change.count == 0)
			return false;
		memcpy(new, old, change.count * sizeof(ItemPointerData));
		close_gaps(new, start, end);
		for (int i = end - 1; i >= start && (place == end || !is_same(&new[place], tid)); i--)
			if (is_same(&new[i], tid) || !ItemPointerIsValid(&new[i]) ||
				(vector != NULL && hnsw_has_bit(scan->hnsw, HNSW_DEAD, &new[i])))
				place = i;
		if (place == end)
		{
			place = vector == NULL ? end - 1 :
				worst_link(scan, host, layer, new, start, tid, vector);
			if (place < 0)
				return false;
			*replaced = new[place];
		}
		new[place] = *tid;
	} while (memcmp(new, old, change.count * sizeof(ItemPointerData)) != 0 &&
			 hnsw_write_lists(scan, &change, 1) > 0);
	return true;
}

/*
 * close_gaps
 *		Close the gaps of one layer of a list: a link after a free place isn't followed.
 *
 * An insertion leaves one if it has chosen a place in a list that was longer then.
 */
static void
close_gaps(ItemPointerData *links, int start, int end)
{
	int			next = start;

	for (int i = start; i < end; i++)
		if (ItemPointerIsValid(&links[i]))
			links[next++] = links[i];
	while (next < end)
		ItemPointerSetInvalid(&links[next++]);
}

/* worst_link -- which of its links would an element give up for one to another?  -1: none. */
static int
worst_link(HnswScan *scan, const HnswNode *host, int layer, const ItemPointerData *links,
		   int start, const ItemPointerData *tid, const char *vector)
{
	int			room = hnsw_layer_links(layer, scan->m);
	HnswNode  **chosen = palloc_array(HnswNode *, room);
	int			nchosen;

	hnsw_forget_nodes(scan, &host->tid);
	for (int i = start; i < start + room; i++)
		hnsw_add_node(scan, &links[i], layer, host->vector);
	scan->nodes[scan->nnodes++] = (HnswNode)
	{
		.tid = *tid,.distance = host->distance,.vector = unconstify(char *, vector)
	};
	nchosen = choose_nodes(scan, room, chosen);
	for (int i = start; i < start + room; i++)
	{
		int			found = 0;

		while (found < nchosen && !is_same(&chosen[found]->tid, &links[i]))
			found++;
		if (found == nchosen)
			return i;
	}
	return -1;
}
