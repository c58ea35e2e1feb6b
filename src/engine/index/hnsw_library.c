/*-------------------------------------------------------------------------
 *
 * hnsw_library.c
 *	  Is an index one of pgvector's HNSW indexes, of a version that we know?
 *
 * Pages, locks and routines of such an index are pgvector's own, and nothing promises that
 * its next version has the same.  So the access method must be that of its library, the
 * library and the extension of a version that was looked at, and the metapage must say what
 * it says there.  Any other index is vacuumed by its access method's own routine.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "access/amapi.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/conffiles.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "engine/index/hnsw_page.h"
#include "relation_size.h"

#define LIBRARY			"vector"
#define HANDLER			"hnswhandler"
#define KNOWN_VERSIONS	"0.8."

static bool is_handler(Oid handler, bool *is_named);
static bool is_of_library(void *routine);
static bool is_known_version(const char *version);
static char *extension_version(const char *name);
static char *installed_version(const char *name);
static bool has_known_pages(Relation index);
static bool has_known_distance(Relation index);

/* hnsw_is_ours -- see hnsw_page.h; *reason is NULL if this is no such index at all. */
bool
hnsw_is_ours(Relation index, const char **reason)
{
	const IndexAmRoutine *am = index->rd_indam;
	bool		is_named;
	const char *version;

	*reason = NULL;
	if (!is_handler(index->rd_amhandler, &is_named))
	{
		if (is_named)
			*reason = "its access method isn't pgvector's";
		return false;
	}
	version = compat_module_version(LIBRARY);
	if (!is_of_library((void *) am->ambulkdelete) || !is_of_library((void *) am->amvacuumcleanup) ||
		am->amsupport != 3 || am->amstrategies != 0 || !am->amcanorderbyop ||
		am->amparallelvacuumoptions != VACUUM_OPTION_PARALLEL_BULKDEL)
		*reason = "its access method isn't pgvector's";
	else if (!is_known_version(version))
		*reason = "this version of pgvector isn't known";
	else if (!has_known_pages(index))
		*reason = "its pages aren't laid out as those of pgvector 0.8";
	else if (!has_known_distance(index))
		*reason = "its operator class isn't like those of pgvector 0.8";
	return *reason == NULL;
}

/* is_handler -- is this pgvector's handler; if not, is it named so? */
static bool
is_handler(Oid handler, bool *is_named)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(handler));
	Form_pg_proc proc;
	bool		is_null;
	Datum		value;
	bool		result = false;

	*is_named = false;
	if (!HeapTupleIsValid(tuple))
		return false;
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	*is_named = strcmp(NameStr(proc->proname), HANDLER) == 0;
	value = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &is_null);
	if (proc->prolang == ClanguageId && !is_null && strcmp(TextDatumGetCString(value), HANDLER) == 0)
	{
		Oid			extension = getExtensionOfObject(ProcedureRelationId, handler);
		char	   *name = OidIsValid(extension) ? get_extension_name(extension) : NULL;

		*is_named = true;
		result = name != NULL && strcmp(name, LIBRARY) == 0;
	}
	ReleaseSysCache(tuple);
	return result;
}

/* is_of_library -- is a routine in pgvector's file? */
static bool
is_of_library(void *routine)
{
	Dl_info		info;
	const char *name;

	if (dladdr(routine, &info) == 0 || info.dli_fname == NULL)
		return false;
	name = last_dir_separator(info.dli_fname);
	return strcmp(name != NULL ? name + 1 : info.dli_fname, LIBRARY DLSUFFIX) == 0;
}

/*
 * is_known_version
 *		Are the library and the extension's objects of a version that we know?
 *
 * A library that doesn't tell (NULL) is taken for what the installation has.
 */
static bool
is_known_version(const char *version)
{
	char	   *extension = extension_version(LIBRARY);

	if (version == NULL)
		version = installed_version(LIBRARY);
	return version != NULL && extension != NULL &&
		strncmp(version, KNOWN_VERSIONS, strlen(KNOWN_VERSIONS)) == 0 &&
		strncmp(extension, KNOWN_VERSIONS, strlen(KNOWN_VERSIONS)) == 0;
}

/* extension_version -- of which version are the extension's objects in this database?  NULL: there are none. */
static char *
extension_version(const char *name)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	char	   *result = NULL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum(name));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		is_null;
		Datum		value = heap_getattr(tuple, Anum_pg_extension_extversion,
										 RelationGetDescr(rel), &is_null);

		result = is_null ? NULL : TextDatumGetCString(value);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/* installed_version -- of which version is the extension that is installed?  NULL if that can't be read. */
static char *
installed_version(const char *name)
{
	char		share[MAXPGPATH];
	char		path[MAXPGPATH];
	ConfigVariable *first = NULL;
	ConfigVariable *last = NULL;
	char	   *result = NULL;
	FILE	   *file;

	get_share_path(my_exec_path, share);
	snprintf(path, sizeof(path), "%s/extension/%s.control", share, name);
	file = AllocateFile(path, "r");
	if (file == NULL)
		return NULL;
	(void) ParseConfigFp(file, path, CONF_FILE_START_DEPTH, DEBUG2, &first, &last);
	FreeFile(file);
	for (ConfigVariable *item = first; item != NULL; item = item->next)
		if (strcmp(item->name, "default_version") == 0)
			result = pstrdup(item->value);
	FreeConfigVariables(first);
	return result;
}

/* has_known_pages -- do the metapage and the first page say what they say in 0.8? */
static bool
has_known_pages(Relation index)
{
	bool		result = relation_blocks(index) > HNSW_FIRST_BLOCK;

	for (BlockNumber blkno = HNSW_META_BLOCK; result && blkno <= HNSW_FIRST_BLOCK; blkno++)
	{
		Buffer		buffer = ReadBuffer(index, blkno);
		Page		page = BufferGetPage(buffer);
		HnswMeta   *meta = (HnswMeta *) PageGetContents(page);

		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		result = !PageIsNew(page) && PageGetSpecialSize(page) == MAXALIGN(sizeof(HnswOpaque)) &&
			((HnswOpaque *) PageGetSpecialPointer(page))->page_id == HNSW_PAGE_ID;
		if (result && blkno == HNSW_META_BLOCK)
			result = meta->magic == HNSW_MAGIC && meta->format == HNSW_FORMAT &&
				meta->m >= HNSW_MIN_M && meta->m <= HNSW_MAX_M &&
				meta->ef_construction >= 4 && meta->ef_construction <= 1000;
		UnlockReleaseBuffer(buffer);
	}
	return result;
}

/*
 * has_known_distance
 *		Has the one key a distance function, of two vectors that are stored as they are?
 *
 * Workers call it, and the leader in parallel mode.
 */
static bool
has_known_distance(Relation index)
{
	Oid			function;
	Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(index), 0);

	if (IndexRelationGetNumberOfAttributes(index) != 1 || attribute->attlen != -1 ||
		!OidIsValid(function = index_getprocid(index, 1, 1)))
		return false;
	return get_func_rettype(function) == FLOAT8OID && get_func_nargs(function) == 2 &&
		func_parallel(function) == PROPARALLEL_SAFE;
}
