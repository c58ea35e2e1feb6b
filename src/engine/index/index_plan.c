/*-------------------------------------------------------------------------
 *
 * index_plan.c
 *	  The plan of a table's index vacuum: which indexes several processes may
 *	  vacuum, how many of them, and the shared memory for it.
 *
 * The leader makes it before the team is launched.  index_vacuum.c carries it out.
 *
 * Other access methods may do what parallel mode forbids, such as assigning a
 * transaction ID, unless they declare that a phase may be done in a worker.  So
 * the leader does such a phase while the team is paused: bulk deletion before
 * all other indexes are passed over, when workers hold nothing of their own yet,
 * and cleanup after them.  So it does cleanup of BRIN indexes on expressions
 * that aren't parallel safe, as summarizing evaluates them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/brin_internal.h"
#include "access/genam.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "nodes/pathnodes.h"
#include "optimizer/clauses.h"
#include "optimizer/paths.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "storage/spin.h"

#include "compat.h"
#include "engine/index/index_kind.h"
#include "engine/phases.h"
#include "relation_size.h"
#include "team/degree.h"

static void find_kind(TableVacuum *vacuum, int number);
static bool has_unsafe_code(Relation index);
static bool forbids_parallel_mode(const TableVacuum *vacuum, int number);

/*
 * index_measure
 *		Leader: note how large the indexes are, of a table that is_tiny or not.
 *
 * Most of the cost of vacuuming a tiny table is to open files, and without dead
 * rows the table needs none of its indexes.  So for a small index of such a table the
 * catalog's size counts until the index is to be processed.  That size is not far off:
 * only a VACUUM makes a heap smaller or its items free for new rows, and it corrects the
 * catalog.
 */
void
index_measure(TableVacuum *vacuum, bool is_tiny)
{
	Assert(is_leader(vacuum) && !IsInParallelMode());
	vacuum->index_blocks = palloc_array(BlockNumber, vacuum->nindexes);
	vacuum->kinds = palloc0_array(const IndexKind *, vacuum->nindexes);
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		Relation	index = vacuum->indexes[i];
		BlockNumber known = index->rd_rel->relpages;

		vacuum->index_blocks[i] = is_tiny && known > 0 && known < min_parallel_index_scan_size ?
			known : relation_blocks(index);
		/* a damaged index is in the way of no VACUUM that passes over indexes */
		if (vacuum->shared->do_index_vacuuming && !VacuumFailsafeActive)
			find_kind(vacuum, i);
	}
}

/* find_kind -- leader: which kind is an index of?  If that is doubtful, say so. */
static void
find_kind(TableVacuum *vacuum, int number)
{
	const char *reason;

	vacuum->kinds[number] = index_kind(vacuum->indexes[number], &reason);
	if (reason != NULL)
		ereport(vacuum->shared->verbose ? INFO : DEBUG2,
				(errmsg("index \"%s\" is left to its access method's own routine: %s",
						RelationGetRelationName(vacuum->indexes[number]), reason)));
}

/*
 * index_parallel_degree
 *		How many workers do the indexes have use for?  One process for each index, or
 *		as many as the largest index calls for that several processes can share.
 */
int
index_parallel_degree(const TableVacuum *vacuum)
{
	int			bulkdelete = 0,
				cleanup = 0,
				largest = 0;

	Assert(is_leader(vacuum) && vacuum->index_blocks != NULL);

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		uint8		options = vacuum->indexes[i]->rd_indam->amparallelvacuumoptions;

		if (!index_may_be_parallel(vacuum, i))
			continue;
		if (options & VACUUM_OPTION_PARALLEL_BULKDEL)
			bulkdelete++;
		if (options & (VACUUM_OPTION_PARALLEL_CLEANUP | VACUUM_OPTION_PARALLEL_COND_CLEANUP))
			cleanup++;
		if (vacuum->kinds[i] != NULL)
		{
			int			degree = degree_for_size(vacuum->index_blocks[i],
												 min_parallel_index_scan_size);

			largest = Max(largest, degree);
		}
	}

	/* one of the indexes is for the leader */
	return Max(Max(bulkdelete, cleanup) - 1, largest);
}

/*
 * index_forbid_workers
 *		Must this VACUUM get by without workers, as an index rules out parallel mode?  If
 *		they are asked for, warn.
 */
bool
index_forbid_workers(const TableVacuum *vacuum, bool are_asked_for)
{
	Assert(is_leader(vacuum) && !IsInParallelMode());
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		if (!forbids_parallel_mode(vacuum, i))
			continue;
		if (are_asked_for)
			ereport(WARNING,
					(errmsg("disabling parallel option of vacuum on \"%s\" --- index \"%s\" cannot be vacuumed in parallel mode",
							vacuum->relname, RelationGetRelationName(vacuum->indexes[i]))));
		return true;
	}
	return false;
}

/* has_unsafe_code -- do its expressions or its predicate call functions that aren't parallel safe? */
static bool
has_unsafe_code(Relation index)
{
	PlannerInfo *root;

	if (RelationGetIndexExpressions(index) == NIL && RelationGetIndexPredicate(index) == NIL)
		return false;
	root = makeNode(PlannerInfo);
	root->glob = makeNode(PlannerGlobal);
	root->glob->maxParallelHazard = PROPARALLEL_UNSAFE;
	return !is_parallel_safe(root, (Node *) RelationGetIndexExpressions(index)) ||
		!is_parallel_safe(root, (Node *) RelationGetIndexPredicate(index));
}

/*
 * forbids_parallel_mode
 *		May bulk deletion, or cleanup, of this index do what parallel mode forbids?
 *
 * Cleanup by an access method that declares no more than its bulk deletion is the leader's,
 * in parallel mode, as in PostgreSQL.
 */
static bool
forbids_parallel_mode(const TableVacuum *vacuum, int number)
{
	Relation	index = vacuum->indexes[number];

	if (vacuum->kinds[number] != NULL)
		return false;
	/* from which nothing is ever deleted */
	if (index->rd_indam->ambulkdelete == brinbulkdelete)
		return has_unsafe_code(index);
	return (index->rd_indam->amparallelvacuumoptions & VACUUM_OPTION_PARALLEL_BULKDEL) == 0;
}

/*
 * index_worker_memory_kb
 *		The maintenance_work_mem of each worker, if the leader has memory_kb.  The
 *		workers that vacuum indexes of AMs that use it share one such amount.
 */
int
index_worker_memory_kb(const TableVacuum *vacuum, int nworkers, int memory_kb)
{
	int			users = 0;

	Assert(is_leader(vacuum));
	Assert(nworkers > 0 && memory_kb > 0);
	for (int i = 0; i < vacuum->nindexes; i++)
		if (index_may_be_parallel(vacuum, i) &&
			vacuum->indexes[i]->rd_indam->amusemaintenanceworkmem)
			users++;

	return users > 0 ? memory_kb / Min(nworkers, users) : memory_kb;
}

/*
 * index_shared_size
 *		Leader: how much shared memory the kinds of all indexes want.
 *
 * The size that each wants is kept: it may depend on the index's size, and the
 * index grows.
 */
Size
index_shared_size(TableVacuum *vacuum)
{
	Size		size = 0;

	Assert(is_leader(vacuum) && !IsInParallelMode());

	vacuum->area_sizes = palloc0_array(Size, vacuum->nindexes);
	for (int i = 0; i < vacuum->nindexes; i++)
	{
		Relation	index = vacuum->indexes[i];
		const IndexKind *kind = vacuum->kinds[i];

		if (kind == NULL)
			continue;
		vacuum->area_sizes[i] = kind->shared_size;
		if (kind->more_shared_size != NULL)
			vacuum->area_sizes[i] = add_size(kind->shared_size,
											 kind->more_shared_size(index));
		size = add_size(size, MAXALIGN(vacuum->area_sizes[i]));
	}
	return size;
}

/* index_join -- every member, when it knows the shared block: find the indexes' kinds, as the leader has. */
void
index_join(TableVacuum *vacuum)
{
	Assert(vacuum->nindexes == 0 || vacuum->indexes != NULL);

	if (!is_leader(vacuum))
		vacuum->kinds = palloc0_array(const IndexKind *, vacuum->nindexes);
	vacuum->empty_pages = palloc0_array(BlockList, vacuum->nindexes);
	vacuum->put_off = palloc0_array(BlockList, vacuum->nindexes);
	for (int i = 0; i < vacuum->nindexes && !is_leader(vacuum); i++)
		vacuum->kinds[i] = index_numbered_kind(vacuum_index(vacuum->shared, i)->kind);
}

/*
 * index_setup
 *		Leader, before the team is launched: note what is known of the indexes.
 *
 * From areas_start on, the shared block has index_shared_size bytes.
 */
void
index_setup(TableVacuum *vacuum, bool parallel, Size areas_start)
{
	Assert(is_leader(vacuum) && vacuum->nindexes == vacuum->shared->nindexes);
	Assert(vacuum->kinds != NULL && vacuum->index_blocks != NULL && vacuum->area_sizes != NULL);
	Assert(areas_start == MAXALIGN(areas_start));
	vacuum->private_stats = palloc0_array(IndexBulkDeleteResult *, vacuum->nindexes);
	vacuum->begun = palloc0_array(bool, vacuum->nindexes);

	for (int i = 0; i < vacuum->nindexes; i++)
	{
		IndexShared *index = vacuum_index(vacuum->shared, i);
		const IndexKind *kind = vacuum->kinds[i];
		int			place = i;

		index->nblocks = vacuum->index_blocks[i];
		index->kind = index_kind_number(kind);
		index->may_be_parallel = parallel && index_may_be_parallel(vacuum, i);
		SpinLockInit(&index->mutex);
		pg_atomic_init_u32(&index->turn_taken, 0);
		ConditionVariableInit(&index->turn_ended);
		pg_atomic_init_u64(&index->known_end, 0);
		pg_atomic_init_u32(&index->counted, 0);
		if (vacuum->area_sizes[i] > 0)
		{
			index->area_start = areas_start;
			index->area_size = vacuum->area_sizes[i];
			areas_start += MAXALIGN(index->area_size);
		}
		if (kind != NULL && kind->setup != NULL)
			kind->setup(vacuum, i);

		/* sort it into those before it, largest first */
		while (place > 0)
		{
			IndexShared *before = vacuum_index(vacuum->shared, place - 1);

			if (vacuum_index(vacuum->shared, before->claim_order)->nblocks >= index->nblocks)
				break;
			vacuum_index(vacuum->shared, place)->claim_order = before->claim_order;
			place--;
		}
		vacuum_index(vacuum->shared, place)->claim_order = i;
	}
}

/*
 * index_may_be_parallel
 *		Is the index big enough to be worth a worker, and its AM willing to work
 *		in one, in some phase?
 */
bool
index_may_be_parallel(const TableVacuum *vacuum, int number)
{
	Assert(number >= 0 && number < vacuum->nindexes);
	return vacuum->indexes[number]->rd_indam->amparallelvacuumoptions != VACUUM_OPTION_NO_PARALLEL &&
		vacuum->index_blocks[number] >= min_parallel_index_scan_size;
}
