/*-------------------------------------------------------------------------
 *
 * gin_check.c
 *	  Is a page of a GIN index of the kind that it must be?
 *
 * VACUUM (gin_page.c, gin_tree.c) asks this of each page that a link leads to.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gin_private.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "compat.h"
#include "engine/index/gin_check.h"

/* gin_report_corruption -- raise an error: what is on a page can't be right. */
void
gin_report_corruption(Relation index, BlockNumber blkno)
{
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("index \"%s\" contains unexpected data in block %u",
					RelationGetRelationName(index), blkno),
			 errhint("Please REINDEX it.")));
}

/* gin_page_is -- is a locked page one of GIN's, of the kind that these flags describe? */
bool
gin_page_is(Buffer buffer, uint16 flags)
{
	Page		page = BufferGetPage(buffer);

	Assert(compat_is_locked(buffer));
	return !PageIsNew(page) &&
		PageGetSpecialSize(page) == MAXALIGN(sizeof(GinPageOpaqueData)) &&
		(GinPageGetOpaque(page)->flags & GIN_KIND_FLAGS) == flags;
}

/* gin_check_page -- raise an error if gin_page_is says no. */
void
gin_check_page(Relation index, Buffer buffer, uint16 flags)
{
	if (!gin_page_is(buffer, flags))
		gin_report_corruption(index, BufferGetBlockNumber(buffer));
}
