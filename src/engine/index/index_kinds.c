/*-------------------------------------------------------------------------
 *
 * index_kinds.c
 *	  The kinds of indexes that a team vacuums together.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/gist_private.h"
#include "access/hash.h"
#include "access/nbtree.h"
#include "access/spgist.h"
#include "storage/lmgr.h"

#include "engine/index/gin_vacuum.h"
#include "engine/index/hnsw_page.h"
#include "engine/index/index_kind.h"

static bool has_routines(Relation index, ambulkdelete_function bulk_delete,
						 amvacuumcleanup_function cleanup);

/* in the order of their numbers */
static const IndexKind *const kinds[] = {
	&btree_kind, &gist_kind, &spgist_kind, &hash_kind, &gin_kind, &hnsw_kind
};

/*
 * index_kind
 *		Which kind is this index of?  NULL: of none that we know; *reason says why, if
 *		that isn't obvious, and is NULL otherwise.
 *
 * The routines that the server would call decide: an access method with another
 * name may have them, and one of the same name may have others.
 */
const IndexKind *
index_kind(Relation index, const char **reason)
{
	*reason = NULL;
	Assert(CheckRelationLockedByMe(index, RowExclusiveLock, true));

	if (index->rd_indam->ambulkdelete == btbulkdelete)
		return &btree_kind;
	if (has_routines(index, gistbulkdelete, gistvacuumcleanup))
		return &gist_kind;
	if (has_routines(index, spgbulkdelete, spgvacuumcleanup))
		return &spgist_kind;
	if (index->rd_indam->ambulkdelete == hashbulkdelete)
		return &hash_kind;
	if (gin_is_ours(index))
		return &gin_kind;
	if (hnsw_is_ours(index, reason))
		return &hnsw_kind;
	return NULL;
}

/* index_kind_number -- the number of a kind, or of none, for other members. */
int
index_kind_number(const IndexKind *kind)
{
	for (int i = 0; i < lengthof(kinds); i++)
		if (kinds[i] == kind)
			return i;
	return -1;
}

/* index_numbered_kind -- the reverse. */
const IndexKind *
index_numbered_kind(int number)
{
	Assert(number < (int) lengthof(kinds));
	return number < 0 ? NULL : kinds[number];
}

/*
 * has_routines
 *		Would the server call these two?  If cleanup is ours, too, both must be
 *		known.
 */
static bool
has_routines(Relation index, ambulkdelete_function bulk_delete, amvacuumcleanup_function cleanup)
{
	return index->rd_indam->ambulkdelete == bulk_delete &&
		index->rd_indam->amvacuumcleanup == cleanup;
}
