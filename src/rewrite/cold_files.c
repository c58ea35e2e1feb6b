/*-------------------------------------------------------------------------
 *
 * cold_files.c
 *	  New files that are not to stay in the page cache of the operating system.
 *
 * VACUUM FULL writes new files and removes the old ones.  If most of an old file was in
 * the page cache, then those that use the table need it there, and the new one stays.
 * If not, it is dropped at the end, when the indexes have been built of the new table:
 * see file_cache.c.  Each index is judged by itself, as an index is often there where
 * its table isn't.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "file_cache.h"
#include "rewrite/cold_files.h"

static List *add_if_cold(List *relids, Oid relid);

/* cold_files_list -- see cold_files.h. */
List *
cold_files_list(Relation rel)
{
	List	   *relids = NIL;
	Oid			toast_relid = rel->rd_rel->reltoastrelid;

	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, true));
	if (!file_cache_is_wanted(rel, RelationGetNumberOfBlocks(rel)))
		return NIL;
	relids = add_if_cold(relids, RelationGetRelid(rel));
	foreach_oid(index, RelationGetIndexList(rel))
		relids = add_if_cold(relids, index);
	if (OidIsValid(toast_relid))
	{
		Relation	toast = relation_open(toast_relid, AccessExclusiveLock);

		relids = add_if_cold(relids, toast_relid);
		foreach_oid(index, RelationGetIndexList(toast))
			relids = add_if_cold(relids, index);
		relation_close(toast, NoLock);
	}
	return relids;
}

/* add_if_cold -- one of them. */
static List *
add_if_cold(List *relids, Oid relid)
{
	Relation	rel = relation_open(relid, AccessExclusiveLock);

	if (!file_cache_has_most(rel, RelationGetNumberOfBlocks(rel)))
		relids = lappend_oid(relids, relid);
	relation_close(rel, NoLock);
	return relids;
}

/* cold_files_drop -- see cold_files.h. */
void
cold_files_drop(List *relids)
{
	FileCache  *cache;

	if (relids == NIL)
		return;
	cache = file_cache_begin(0);
	foreach_oid(relid, relids)
	{
		Relation	rel = relation_open(relid, AccessExclusiveLock);

		file_cache_after_all(cache, rel, NULL);
		relation_close(rel, NoLock);
	}
	file_cache_end(cache);
}
