/*-------------------------------------------------------------------------
 *
 * hnsw_repair.c
 *	  New links for elements of an HNSW graph whose neighbours have died.
 *
 * Candidates for a layer are an element's live neighbours and the live neighbours of its
 * dead ones.  If these are too few, dead ones lead on to others; if even these are too few,
 * the graph is searched from the entry point.  Which of the candidates become neighbours
 * is decided as an insertion decides it.  Only the element's own list is written.
 *
 * README.md says why that is enough, and why others may change lists meanwhile.
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
static void lead_back(HnswScan *scan, BlockNumber blkno, const HnswChange *change);
static bool has_link(const ItemPointerData *links, int nlinks, const ItemPointerData *tid);
static void lead_back_from(HnswScan *scan, const ItemPointerData *tid, const ItemPointerData *self,
						   const char *self_vector, int layer);
static int	worst_link(HnswScan *scan, const HnswNode *host, const ItemPointerData *links,
					   const ItemPointerData *self, const char *self_vector, int layer);
static bool leads_to_dead(HnswScan *scan, const ItemPointerData *links, int nlinks);
static void choose_links(HnswScan *scan, const char *query, int layer,
						 const ItemPointerData *old, ItemPointerData *new, bool *is_good);
static void widen_beam(HnswScan *scan, const char *query, int layer, int most,
					   HnswNode *beam, int *nbeam);
static bool is_first_visit(followed_hash *visited, const ItemPointerData *tid);
static int	compare_nodes(const void *a, const void *b);

/*
 * hnsw_repair_page
 *		Repair the lists of the live elements of a page, of which the scan has a copy.
 *
 * A list that an insertion has changed meanwhile is done again.
 */
void
hnsw_repair_page(HnswScan *scan, BlockNumber blkno)
{
	Page		page = scan->page.data;
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
	MemoryContext old_context = MemoryContextSwitchTo(scan->page_context);
	HnswChange *changes = palloc_array(HnswChange, maxoff);
	HnswChange *repaired = palloc_array(HnswChange, maxoff);
	int			nchanges = 0;
	int			nrepaired;
	int			nleft;

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
		if (hnsw_live_element_at(page, off) != NULL &&
			make_change(scan, blkno, off, &changes[nchanges]))
			nchanges++;
	scan->result.repaired += nchanges;
	nrepaired = nchanges;
	memcpy(repaired, changes, nchanges * sizeof(HnswChange));

	nleft = hnsw_change_lists(scan, changes, nchanges);
	while (nleft > 0)
	{
		delay_point();
		if (!hnsw_copy_page(scan, ReadBuffer(scan->base.index, blkno)))
			index_report_page(scan->base.index, blkno);
		nchanges = 0;
		for (int i = 0; i < nleft; i++)
		{
			OffsetNumber off = changes[i].element;

			/* an element with rows keeps them until the next VACUUM */
			if (hnsw_live_element_at(page, off) == NULL)
				index_report_page(scan->base.index, blkno);
			if (make_change(scan, blkno, off, &changes[nchanges]))
				nchanges++;
		}
		nleft = hnsw_change_lists(scan, changes, nchanges);
	}
	for (int i = 0; i < nrepaired; i++)
		lead_back(scan, blkno, &repaired[i]);
	MemoryContextSwitchTo(old_context);
	MemoryContextReset(scan->page_context);
}

/*
 * lead_back
 *		Have the best of those that an element newly leads to lead back to it, if an
 *		insertion would have them do so.
 */
static void
lead_back(HnswScan *scan, BlockNumber blkno, const HnswChange *change)
{
	HnswElement *element = hnsw_element_at(scan->page.data, change->element);
	ItemPointerData self;

	ItemPointerSet(&self, blkno, change->element);
	for (int layer = element->level; layer >= 0; layer--)
	{
		int			start = hnsw_layer_start(element->level, layer, scan->m);
		int			room = hnsw_layer_links(layer, scan->m);

		for (int i = 0; i < room && ItemPointerIsValid(&change->new[start + i]); i++)
		{
			MemoryContext old_context;

			if (!change->is_good[start + i] ||
				has_link(&change->old[start], room, &change->new[start + i]))
				continue;
			delay_point();
			old_context = MemoryContextSwitchTo(scan->element_context);
			lead_back_from(scan, &change->new[start + i], &self, element->vector, layer);
			MemoryContextSwitchTo(old_context);
			MemoryContextReset(scan->element_context);
		}
	}
}

/* has_link -- is this among the links? */
static bool
has_link(const ItemPointerData *links, int nlinks, const ItemPointerData *tid)
{
	for (int i = 0; i < nlinks; i++)
		if (ItemPointerEquals(unconstify(ItemPointerData *, &links[i]), unconstify(ItemPointerData *, tid)))
			return true;
	return false;
}

/*
 * lead_back_from
 *		Have an element lead to self on a layer, in the place of a dead one or of one that
 *		it wouldn't choose any more.
 *
 * If its list changes meanwhile it stays as it is.
 */
static void
lead_back_from(HnswScan *scan, const ItemPointerData *tid, const ItemPointerData *self,
			   const char *self_vector, int layer)
{
	int			room = hnsw_layer_links(layer, scan->m);
	HnswNode	host;
	HnswChange	change;
	int			start;
	int			place = -1;

	if (!hnsw_read_node(scan, tid, layer, self_vector, &host))
		return;
	change = (HnswChange)
	{
		.list = host.list,.version = host.version
	};
	change.count = hnsw_all_links(scan, &host, &change.old);
	start = hnsw_layer_start(host.level, layer, scan->m);
	if (change.count == 0 || has_link(&change.old[start], room, self))
		return;
	for (int i = start; i < start + room && place < 0; i++)
		if (!ItemPointerIsValid(&change.old[i]) || hnsw_has_bit(scan, scan->dead, &change.old[i]))
			place = i;
	if (place < 0)
	{
		int			pruned = worst_link(scan, &host, &change.old[start], self, self_vector, layer);

		if (pruned < 0)
			return;
		place = start + pruned;
	}
	change.new = palloc_array(ItemPointerData, change.count);
	memcpy(change.new, change.old, change.count * sizeof(ItemPointerData));
	change.new[place] = *self;
	(void) hnsw_change_lists(scan, &change, 1);
}

/* worst_link -- which of its links would an element give up for one to self?  -1: none. */
static int
worst_link(HnswScan *scan, const HnswNode *host, const ItemPointerData *links,
		   const ItemPointerData *self, const char *self_vector, int layer)
{
	int			room = hnsw_layer_links(layer, scan->m);
	HnswNode  **chosen = palloc_array(HnswNode *, room);
	int			nchosen;
	HnswNode   *node;

	hnsw_forget_nodes(scan, ItemPointerGetBlockNumber(&host->tid),
					  ItemPointerGetOffsetNumber(&host->tid));
	for (int i = 0; i < room; i++)
		hnsw_add_node(scan, &links[i], layer, host->vector);
	node = &scan->nodes[scan->nnodes++];
	*node = (HnswNode)
	{
		.tid = *self,.distance = host->distance,.vector = unconstify(char *, self_vector)
	};
	nchosen = hnsw_choose(scan, room, chosen);
	for (int i = room - 1; i >= 0; i--)
	{
		bool		is_chosen = false;

		for (int j = 0; j < nchosen && !is_chosen; j++)
			is_chosen = ItemPointerEquals(&chosen[j]->tid, unconstify(ItemPointerData *, &links[i]));
		if (!is_chosen)
			return i;
	}
	return -1;
}

/*
 * make_change
 *		Choose new links for an element of the page in hand; return false if it leads to
 *		no dead one.
 */
static bool
make_change(HnswScan *scan, BlockNumber blkno, OffsetNumber off, HnswChange *change)
{
	HnswElement *element = hnsw_element_at(scan->page.data, off);
	MemoryContext old_context;

	change->list = element->list;
	change->version = element->version;
	change->element = off;
	change->count = hnsw_own_links(scan, blkno, element, &change->old);
	if (!leads_to_dead(scan, change->old, change->count))
		return false;

	change->is_good = palloc0_array(bool, change->count);
	change->new = palloc_array(ItemPointerData, change->count);
	memcpy(change->new, change->old, change->count * sizeof(ItemPointerData));
	old_context = MemoryContextSwitchTo(scan->element_context);
	for (int layer = element->level; layer >= 0; layer--)
	{
		int			start = hnsw_layer_start(element->level, layer, scan->m);

		if (!leads_to_dead(scan, &change->old[start], hnsw_layer_links(layer, scan->m)))
			continue;
		delay_point();
		hnsw_forget_nodes(scan, blkno, off);
		choose_links(scan, element->vector, layer, &change->old[start], &change->new[start],
					 &change->is_good[start]);
	}
	MemoryContextSwitchTo(old_context);
	MemoryContextReset(scan->element_context);
	return true;
}

/* leads_to_dead -- does one of these links? */
static bool
leads_to_dead(HnswScan *scan, const ItemPointerData *links, int nlinks)
{
	for (int i = 0; i < nlinks; i++)
		if (ItemPointerIsValid(&links[i]) && hnsw_has_bit(scan, scan->dead, &links[i]))
			return true;
	return false;
}

/*
 * choose_links
 *		New links on one layer for the element with this vector.
 *
 * Dead neighbours lead to others as long as candidates are few: those of the element
 * itself always, and those of dead ones until there are as many as a list has room for.
 */
static void
choose_links(HnswScan *scan, const char *query, int layer,
			 const ItemPointerData *old, ItemPointerData *new, bool *is_good)
{
	int			room = hnsw_layer_links(layer, scan->m);
	ItemPointerData links[HNSW_MAX_LINKS];
	ItemPointerData *queue = palloc_array(ItemPointerData, scan->max_nodes);
	HnswNode  **chosen = palloc_array(HnswNode *, room);
	int			nqueue = 0;
	int			nfirst;
	int			nchosen;

	for (int i = 0; i < room; i++)
	{
		if (!ItemPointerIsValid(&old[i]))
			continue;
		if (!hnsw_has_bit(scan, scan->dead, &old[i]))
			hnsw_add_node(scan, &old[i], layer, query);
		else if (is_first_visit(scan->seen, &old[i]))
			queue[nqueue++] = old[i];
	}
	nfirst = nqueue;
	for (int i = 0; i < nqueue && scan->nnodes < (i < nfirst ? scan->max_nodes : room); i++)
	{
		HnswNode	dead;
		int			nlinks;

		if (!hnsw_read_node(scan, &queue[i], layer, NULL, &dead))
			continue;
		nlinks = hnsw_read_links(scan, &dead, layer, links);
		for (int j = 0; j < nlinks; j++)
		{
			if (!hnsw_has_bit(scan, scan->dead, &links[j]))
				hnsw_add_node(scan, &links[j], layer, query);
			else if (nqueue < scan->max_nodes && is_first_visit(scan->seen, &links[j]))
				queue[nqueue++] = links[j];
		}
	}
	if (scan->nnodes < room / 2)
		hnsw_search(scan, query, layer, true);

	nchosen = hnsw_choose(scan, room, chosen);
	for (int i = 0; i < room; i++)
	{
		is_good[i] = i < nchosen && chosen[i]->is_good;
		if (i < nchosen)
			new[i] = chosen[i]->tid;
		else
			ItemPointerSetInvalid(&new[i]);
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

/* hnsw_forget_nodes -- no candidates yet, for the element at this place. */
void
hnsw_forget_nodes(HnswScan *scan, BlockNumber blkno, OffsetNumber off)
{
	ItemPointerData self;

	scan->nnodes = 0;
	followed_reset(scan->seen);
	ItemPointerSet(&self, blkno, off);
	(void) is_first_visit(scan->seen, &self);
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
	if (meta.entry_block == InvalidBlockNumber || meta.entry_level < layer)
		return;
	scan->result.searched++;
	beam = palloc_array(HnswNode, scan->ef + 1);
	ItemPointerSet(&entry, meta.entry_block, meta.entry_offset);
	if (hnsw_read_node(scan, &entry, layer, query, &beam[0]))
	{
		for (int upper = beam[0].level; upper > layer && by_upper_layers; upper--)
			widen_beam(scan, query, upper, 1, beam, &nbeam);
		widen_beam(scan, query, layer, scan->ef, beam, &nbeam);
		for (int i = 0; i < nbeam; i++)
			if (beam[i].is_live && scan->nnodes < scan->max_nodes &&
				is_first_visit(scan->seen, &beam[i].tid))
				scan->nodes[scan->nnodes++] = beam[i];
	}
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
		int			nlinks;

		if (beam[next].was_expanded)
		{
			next++;
			continue;
		}
		CHECK_FOR_INTERRUPTS();
		beam[next].was_expanded = true;
		nlinks = hnsw_read_links(scan, &beam[next], layer, links);
		for (int i = 0; i < nlinks; i++)
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
	int			nnodes = Min(scan->nnodes, Max(scan->ef, most));
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
