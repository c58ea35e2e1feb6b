/*-------------------------------------------------------------------------
 *
 * disk_space.c
 *	  Is there room for a second copy of a table, or of an index?
 *
 * Until it commits, a rewrite needs room for the new table, its TOAST table and its
 * indexes, and for WAL of about the same size.  It also needs room to sort the entries
 * of the largest indexes, of as many as may be built at once.
 *
 * How big the new table will be isn't known before it is written.  The estimate goes
 * by the share of live rows that the statistics system knows of, or by the old size
 * if it knows of none.  It may be wrong either way, so the answer is a warning.  The guard
 * of disks ends a rewrite that does fill one (guards/disk.c).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/genam.h"
#include "access/relation.h"
#include "access/xlog_internal.h"
#include "commands/tablespace.h"
#include "common/int.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "compat.h"
#include "machine/disk_free.h"
#include "relation_size.h"
#include "report/pretty_bytes.h"
#include "rewrite/disk_space.h"
#include "settings.h"

/* What is needed in one file system */
typedef struct FileSystem
{
	dev_t		device;
	char	   *path;			/* that the need was first found for */
	uint64		free_bytes;
	uint64		size_bytes;
	uint64		needed_bytes;
} FileSystem;

static int	compare_falling(const void *a, const void *b);
static List *add_need(List *file_systems, const char *path, uint64 bytes);
static List *need_for_relation(List *file_systems, Oid relid, double live_share,
							   uint64 *bytes);
static List *need_for_file(List *file_systems, Relation rel, uint64 bytes);
static List *need_for_sorts(List *file_systems, uint64 bytes);
static double share_of_live_rows(Oid relid, bool is_shared);

/* disk_space_check -- is a rewrite of rel likely to fill a file system? */
void
disk_space_check(Relation rel, const char *command)
{
	List	   *file_systems = NIL;
	List	   *indexes;
	Oid			toast = rel->rd_rel->reltoastrelid;
	double		live_share;
	uint64		bytes,
				total,
			   *sorts,
				sort_bytes = 0;
	int			nsorts = 0;

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));
	if (cyclone_min_free_disk == 0)
		return;

	live_share = share_of_live_rows(RelationGetRelid(rel), rel->rd_rel->relisshared);
	file_systems = need_for_relation(file_systems, RelationGetRelid(rel), live_share, &total);
	if (OidIsValid(toast))
	{
		file_systems = need_for_relation(file_systems, toast,
										 share_of_live_rows(toast, rel->rd_rel->relisshared),
										 &bytes);
		total += bytes;
	}
	indexes = RelationGetIndexList(rel);
	sorts = palloc_array(uint64, list_length(indexes));
	foreach_oid(index, indexes)
	{
		file_systems = need_for_relation(file_systems, index, live_share, &bytes);
		total += bytes;
		sorts[nsorts++] = bytes;
	}
	qsort(sorts, nsorts, sizeof(uint64), compare_falling);
	for (int i = 0; i < Min(nsorts, 1 + max_parallel_maintenance_workers); i++)
		sort_bytes += sorts[i];
	file_systems = need_for_sorts(file_systems, sort_bytes);
	if (RelationNeedsWAL(rel) && XLogIsNeeded())
		file_systems = add_need(file_systems, XLOGDIR, total);

	foreach_ptr(FileSystem, fs, file_systems)
	{
		if (fs->needed_bytes > fs->free_bytes)
			ereport(WARNING,
					(errcode(ERRCODE_DISK_FULL),
					 errmsg("disk space may not suffice for %s of \"%s\"",
							command, RelationGetRelationName(rel)),
					 errdetail("It is likely to need %s in the file system of \"%s\", where %s are free.",
							   pretty_bytes(fs->needed_bytes), fs->path,
							   pretty_bytes(fs->free_bytes)),
					 errhint("%s writes a second copy of the table, and WAL of the same size.", command)));
	}
}

/*
 * disk_space_suffices
 *		Is there room for another index like this one, beside what is to stay free?
 */
bool
disk_space_suffices(Relation index, BlockNumber pages)
{
	List	   *file_systems = NIL;
	uint64		bytes = (uint64) pages * BLCKSZ;

	Assert(CheckRelationLockedByMe(index, AccessShareLock, true));

	if (cyclone_min_free_disk == 0)
		return true;

	file_systems = need_for_file(file_systems, index, bytes);
	file_systems = need_for_sorts(file_systems, bytes);
	if (RelationNeedsWAL(index) && XLogIsNeeded())
		file_systems = add_need(file_systems, XLOGDIR, bytes);
	foreach_ptr(FileSystem, fs, file_systems)
	{
		uint64		reserve = disk_free_bound(cyclone_min_free_disk, fs->size_bytes);

		if (fs->needed_bytes + reserve > fs->free_bytes)
		{
			ereport(WARNING,
					(errcode(ERRCODE_DISK_FULL),
					 errmsg("index \"%s\" stays bloated, as disk space may not suffice to build it anew",
							RelationGetRelationName(index)),
					 errdetail("It is likely to need %s in the file system of \"%s\", where %s are free, of which %s should stay free.",
							   pretty_bytes(fs->needed_bytes), fs->path,
							   pretty_bytes(fs->free_bytes), pretty_bytes(reserve)),
					 errhint("Free some space, and run VACUUM (FULL INPLACE) again.")));
			return false;
		}
	}
	return true;
}

/* compare_falling -- for qsort: the larger size first. */
static int
compare_falling(const void *a, const void *b)
{
	return pg_cmp_u64(*(const uint64 *) b, *(const uint64 *) a);
}

/* add_need -- add to what is needed in the file system of this path. */
static List *
add_need(List *file_systems, const char *path, uint64 bytes)
{
	FileSystem *added;
	DiskFree	space;

	/* nothing is known of such a file system, so there is no warning */
	if (!disk_free(path, &space))
		return file_systems;

	foreach_ptr(FileSystem, fs, file_systems)
	{
		if (fs->device == space.device)
		{
			fs->needed_bytes += bytes;
			return file_systems;
		}
	}

	added = palloc_object(FileSystem);
	added->device = space.device;
	added->path = pstrdup(path);
	added->free_bytes = space.free_bytes;
	added->size_bytes = space.size_bytes;
	added->needed_bytes = bytes;
	return lappend(file_systems, added);
}

/* need_for_relation -- a new copy of this relation is needed; set *bytes to its size. */
static List *
need_for_relation(List *file_systems, Oid relid, double live_share, uint64 *bytes)
{
	Relation	rel = relation_open(relid, AccessShareLock);

	*bytes = (uint64) relation_blocks(rel) * BLCKSZ * live_share;
	file_systems = need_for_file(file_systems, rel, *bytes);
	relation_close(rel, NoLock);
	return file_systems;
}

/* need_for_file -- the bytes are needed where a relation's files are. */
static List *
need_for_file(List *file_systems, Relation rel, uint64 bytes)
{
	Oid			tablespace = rel->rd_rel->reltablespace;

	return add_need(file_systems,
					GetDatabasePath(MyDatabaseId,
									OidIsValid(tablespace) ? tablespace : MyDatabaseTableSpace),
					bytes);
}

/* need_for_sorts -- indexes that are built at once have this many bytes together. */
static List *
need_for_sorts(List *file_systems, uint64 bytes)
{
	Oid			tablespace;
	char		path[MAXPGPATH];

	if (bytes <= (uint64) maintenance_work_mem * 1024)
		return file_systems;

	PrepareTempTablespaces();
	tablespace = GetNextTempTableSpace();
	if (!OidIsValid(tablespace))
		tablespace = MyDatabaseTableSpace;
	TempTablespacePath(path, tablespace);
	if (access(path, F_OK) != 0)
		strlcpy(path, DatabasePath, sizeof(path));
	return add_need(file_systems, path, bytes * SORT_SHARE);
}

/* share_of_live_rows -- as far as the statistics system knows, 0 to 1. */
static double
share_of_live_rows(Oid relid, bool is_shared)
{
	PgStat_StatTabEntry *stats = compat_fetch_table_stats(is_shared, relid);
	double		live = stats != NULL ? stats->live_tuples : 0;
	double		dead = stats != NULL ? stats->dead_tuples : 0;

	return live + dead > 0 ? live / (live + dead) : 1;
}
