/*-------------------------------------------------------------------------
 *
 * hnsw_library.c
 *	  Is an index one of pgvector's HNSW indexes, of a version that we know?
 *
 * Pages, locks and routines of such an index are pgvector's own, and nothing promises that
 * its next version has the same.  So the access method must be that of its extension, the
 * library of a version that was looked at, and the metapage must say what it says there.
 * Any other index is vacuumed by its access method's own routine.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "catalog/dependency.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/conffiles.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "engine/index/hnsw_page.h"
#include "relation_size.h"

#define LIBRARY			"vector"
#define HANDLER			"hnswhandler"
#define KNOWN_VERSIONS	"0.8."

static bool is_of_library(Relation index);
static bool is_known_version(void);
static char *installed_version(void);
static bool has_known_distance(Relation index);

/* hnsw_is_ours -- see hnsw_page.h; *reason is NULL if this is no such index at all. */
bool
hnsw_is_ours(Relation index, const char **reason)
{
	const char *handler = get_func_name(index->rd_amhandler);
	HnswMeta	meta;

	*reason = NULL;
	if (handler == NULL || strcmp(handler, HANDLER) != 0)
		return false;
	if (!is_of_library(index))
		*reason = "its access method isn't pgvector's";
	else if (!is_known_version())
		*reason = "this version of pgvector isn't known";
	else if (relation_blocks(index) <= HNSW_FIRST_BLOCK || !hnsw_read_meta(index, &meta))
		*reason = "its pages aren't laid out as those of pgvector 0.8";
	else if (!has_known_distance(index))
		*reason = "its operator class isn't like those of pgvector 0.8";
	return *reason == NULL;
}

/* is_of_library -- is the access method of pgvector's extension, and like that of 0.8? */
static bool
is_of_library(Relation index)
{
	const IndexAmRoutine *am = index->rd_indam;
	Oid			extension = getExtensionOfObject(ProcedureRelationId, index->rd_amhandler);
	char	   *name = OidIsValid(extension) ? get_extension_name(extension) : NULL;

	return name != NULL && strcmp(name, LIBRARY) == 0 &&
		am->amsupport == 3 && am->amstrategies == 0 && am->amcanorderbyop &&
		am->amparallelvacuumoptions == VACUUM_OPTION_PARALLEL_BULKDEL;
}

/* is_known_version -- is the library of a version that we know?  One that doesn't tell is taken for what is installed. */
static bool
is_known_version(void)
{
	const char *version = compat_module_version(LIBRARY);

	if (version == NULL)
		version = installed_version();
	return version != NULL && strncmp(version, KNOWN_VERSIONS, strlen(KNOWN_VERSIONS)) == 0;
}

/* installed_version -- of which version is the extension that is installed?  NULL if that can't be read. */
static char *
installed_version(void)
{
	char		share[MAXPGPATH];
	char		path[MAXPGPATH];
	ConfigVariable *first = NULL;
	ConfigVariable *last = NULL;
	char	   *result = NULL;
	FILE	   *file;

	get_share_path(my_exec_path, share);
	snprintf(path, sizeof(path), "%s/extension/%s.control", share, LIBRARY);
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
