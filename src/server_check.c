/*-------------------------------------------------------------------------
 *
 * server_check.c
 *	  Does the library fit the server that has loaded it?
 *
 * The server refuses libraries that were built for another major version.  Minor versions
 * of one major version keep the interface that most extensions use, but we call functions
 * and fill structs for which no rule promises that, and log changes of pages as the server
 * does in its own version.  So, when the server starts:
 *
 * - If it is another minor version than the one that we were built against, a warning in its
 *	 log names both.  If it is an older one, the library isn't used: additions are made for
 *	 libraries that don't know of them yet, never the other way round.
 * - In any case probes have the server make or fill something, and compare that with what we
 *	 would have made.  If one fails, the library isn't used.
 *
 * Then only this file, its parameters and the utility hook are set up: the server runs every
 * VACUUM itself, and options that it doesn't know, and estimates of bloat, are errors.
 * Probes don't find a function whose meaning has changed, nor a change of structs that the
 * server fills only in the midst of a VACUUM.  Hence the warning, even if all succeed.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/heaptoast.h"
#include "access/nbtree.h"
#include "access/tupdesc.h"
#include "catalog/catversion.h"
#include "catalog/pg_control.h"
#include "catalog/pg_type_d.h"
#include "common/controldata_utils.h"
#include "executor/instrument.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "nodes/makefuncs.h"
#include "storage/large_object.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "debug_point.h"
#include "library.h"
#include "server_check.h"

/* What a probe fills memory with, to see how much of it the server fills */
#define CANARY				0xA5

/* A struct that the server fills, and room for one that is longer than ours */
typedef union Filled
{
	BufferUsage buffers;
	WalUsage	wal;
	unsigned char bytes[1024];
} Filled;

static void compare_control_file(StringInfo misfits);
static void compare(StringInfo misfits, const char *what, uint64 ours, uint64 servers);
static void run_probes(StringInfo misfits);
static char *version_name(int version);
static bool map_records_fit(void);
static bool access_methods_fit(void);
static bool index_info_fits(void);
static bool tuple_descriptors_fit(void);
static bool has_column(TupleDesc desc, int number, const char *name, Oid type, int length);
static bool slots_fit(void);
static bool usage_counters_fit(void);
static bool has_size(void *made, Size size);
static Size filled_size(const Filled *filled);

/*
 * The probes, and what each is about.  The order is that in which a misfit is
 * reported; cyclone.debug_failed_probe counts from 1.
 */
static const struct
{
	const char *what;
	bool		(*fits) (void);
}			probes[] = {

	/* what recovery and standbys make of our records */
	{"WAL records about the visibility map", map_records_fit},
	/* what index access methods can do, and how they are called */
	{"struct IndexAmRoutine", access_methods_fit},
	/* built by the server, read and passed on by us */
	{"struct IndexInfo", index_info_fits},
	{"struct TupleDescData", tuple_descriptors_fit},
	{"struct TupleTableSlot", slots_fit},
	/* in shared memory, filled by the server */
	{"structs BufferUsage and WalUsage", usage_counters_fit},
};

/* Why the library isn't used, NULL if it is; the same in all processes. */
static char *unfit_detail = NULL;

/*
 * server_check
 *		Compare the server with the one that we were built against; warn of a
 *		difference.
 *
 * To be called once, in the postmaster, when the parameters of debug_point.c
 * are there.
 */
void
server_check(void)
{
	const int	built_for = COMPAT_BUILT_FOR;
	int			running = DEBUG_LIMIT(server_version,
									  atoi(GetConfigOption("server_version_num", false, false)));
	StringInfoData misfits;

	Assert(process_shared_preload_libraries_in_progress);
	Assert(unfit_detail == NULL);

	initStringInfo(&misfits);
	if (running < built_for)
		appendStringInfoString(&misfits, "the version, which is older");
	compare_control_file(&misfits);
	run_probes(&misfits);

	if (misfits.len > 0)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		unfit_detail = psprintf("It was built against PostgreSQL %s, and this is PostgreSQL %s. What differs: %s.",
								version_name(built_for), version_name(running), misfits.data);
		MemoryContextSwitchTo(old);
		ereport(WARNING,
				(errmsg("pg_cyclone does not fit this server, so PostgreSQL's own VACUUM is used"),
				 errdetail_internal("%s", unfit_detail),
				 errhint("Build and install pg_cyclone again, with this server's pg_config.")));
	}
	else if (running != built_for)
		ereport(WARNING,
				(errmsg("pg_cyclone was built against PostgreSQL %s, and this is PostgreSQL %s",
						version_name(built_for), version_name(running)),
				 errdetail("It calls functions of the server that may differ between minor versions."),
				 errhint("Build and install pg_cyclone again, with this server's pg_config.")));
	pfree(misfits.data);
}

/* server_fits -- may the library be used? */
bool
server_fits(void)
{
	return unfit_detail == NULL;
}

/*
 * server_refuse_if_unfit
 *		Raise an error if the library isn't used.  what names the option or function that
 *		was asked for.
 */
void
server_refuse_if_unfit(const char *what)
{
	refuse_without_preloading();
	if (unfit_detail != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%s cannot be used because pg_cyclone does not fit this server", what),
				 errdetail_internal("%s", unfit_detail),
				 errhint("Build and install pg_cyclone again, with this server's pg_config, and restart the server.")));
}

/*
 * run_probes
 *		List what differs in the server, separated by commas.
 *
 * The server allocates in a context whose chunks are as long as the request, so
 * has_size can compare lengths.
 */
static void
run_probes(StringInfo misfits)
{
	MemoryContext context = GenerationContextCreate(CurrentMemoryContext, "cyclone server check",
													ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);

	for (int i = 0; i < lengthof(probes); i++)
	{
		if (probes[i].fits() && DEBUG_LIMIT(failed_probe, 0) != i + 1)
			continue;
		appendStringInfo(misfits, "%s%s", misfits->len > 0 ? ", " : "", probes[i].what);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* version_name -- "18.6" for 180006; palloc'd. */
static char *
version_name(int version)
{
	return psprintf("%d.%d", version / 10000, version % 10000);
}

/*
 * compare_control_file
 *		List what differs in the cluster: its control file has the sizes and formats by
 *		which the server reads and writes it.
 *
 * The catalogs' version must be the one that our structs are made for.  Minor versions don't
 * change it, but betas do, which have the number of the first release.  The server compares
 * some sizes with those of a library, and not those that matter most to us.
 */
static void
compare_control_file(StringInfo misfits)
{
	bool		crc_ok;
	ControlFileData *file = get_controlfile(DataDir, &crc_ok);

	compare(misfits, "the version of pg_control", PG_CONTROL_VERSION, file->pg_control_version);
	/* what follows may be elsewhere in the file */
	if (file->pg_control_version != PG_CONTROL_VERSION)
		return;
	compare(misfits, "the version of the catalogs", CATALOG_VERSION_NO, file->catalog_version_no);
	compare(misfits, "BLCKSZ", BLCKSZ, file->blcksz);
	compare(misfits, "RELSEG_SIZE", RELSEG_SIZE, file->relseg_size);
	compare(misfits, "XLOG_BLCKSZ", XLOG_BLCKSZ, file->xlog_blcksz);
	compare(misfits, "MAXIMUM_ALIGNOF", MAXIMUM_ALIGNOF, file->maxAlign);
	compare(misfits, "NAMEDATALEN", NAMEDATALEN, file->nameDataLen);
	compare(misfits, "INDEX_MAX_KEYS", INDEX_MAX_KEYS, file->indexMaxKeys);
	compare(misfits, "TOAST_MAX_CHUNK_SIZE", TOAST_MAX_CHUNK_SIZE, file->toast_max_chunk_size);
	compare(misfits, "LOBLKSIZE", LOBLKSIZE, file->loblksize);
}

/* compare -- list a number that differs, with both values. */
static void
compare(StringInfo misfits, const char *what, uint64 ours, uint64 servers)
{
	if (ours != servers)
		appendStringInfo(misfits, "%s%s (" UINT64_FORMAT " there, " UINT64_FORMAT " here)",
						 misfits->len > 0 ? ", " : "", what, ours, servers);
}

/* map_records_fit -- does the server log it as we do if a map's bits are cleared? */
static bool
map_records_fit(void)
{
	return compat_server_logs_map() == COMPAT_LOGS_MAP;
}

/*
 * access_methods_fit
 *		Is what an access method tells of itself as long as we think, and is each
 *		thing where we look for it?
 *
 * Where it isn't allocated its length can't be told; nor does it matter then, as
 * we make none ourselves.
 */
static bool
access_methods_fit(void)
{
	Datum		handled = DirectFunctionCall1(bthandler, Int32GetDatum(0));
	const IndexAmRoutine *routine = (const IndexAmRoutine *) DatumGetPointer(handled);

	if (!COMPAT_STATIC_AM_ROUTINES && !has_size(DatumGetPointer(handled), sizeof(IndexAmRoutine)))
		return false;
	return routine->ambuild == btbuild && routine->ambulkdelete == btbulkdelete &&
		routine->amvacuumcleanup == btvacuumcleanup &&
		routine->amparallelrescan == btparallelrescan;
}

/* index_info_fits -- does the library know what an index is built by? */
static bool
index_info_fits(void)
{
	return has_size(compat_make_index_info(), sizeof(IndexInfo));
}

/*
 * tuple_descriptors_fit
 *		Does the server fill in a row's description where we look?
 *
 * It may have more behind it than we know of: so it is in 17.12.
 */
static bool
tuple_descriptors_fit(void)
{
	TupleDesc	desc = CreateTemplateTupleDesc(2);

	TupleDescInitBuiltinEntry(desc, 1, "one", BOOLOID, -1, 0);
	TupleDescInitBuiltinEntry(desc, 2, "two", INT8OID, -1, 0);
	return desc->natts == 2 && desc->tdtypeid == RECORDOID && desc->tdrefcount == -1 &&
		GetMemoryChunkSpace(desc) >= TupleDescSize(desc) &&
		has_column(desc, 0, "one", BOOLOID, sizeof(bool)) &&
		has_column(desc, 1, "two", INT8OID, sizeof(int64));
}

/* has_column -- is this column of a description as it was made? */
static bool
has_column(TupleDesc desc, int number, const char *name, Oid type, int length)
{
	Form_pg_attribute column = TupleDescAttr(desc, number);

	return strcmp(NameStr(column->attname), name) == 0 &&
		column->attnum == number + 1 && column->atttypid == type &&
		column->attlen == length && column->atttypmod == -1;
}

/* slots_fit -- is what holds a row of the size that we know? */
static bool
slots_fit(void)
{
	return TTSOpsHeapTuple.base_slot_size == sizeof(HeapTupleTableSlot) &&
		TTSOpsBufferHeapTuple.base_slot_size == sizeof(BufferHeapTupleTableSlot) &&
		TTSOpsVirtual.base_slot_size == sizeof(VirtualTupleTableSlot);
}

/*
 * usage_counters_fit
 *		Does the server fill as many bytes of these as we give it?
 *
 * It sets all of them, as no counter is near what the canary would be.
 */
static bool
usage_counters_fit(void)
{
	Filled		buffers;
	Filled		wal;

	memset(&buffers, CANARY, sizeof(buffers));
	memset(&wal, CANARY, sizeof(wal));
	InstrEndParallelQuery(&buffers.buffers, &wal.wal);
	return filled_size(&buffers) == sizeof(BufferUsage) &&
		filled_size(&wal) == sizeof(WalUsage);
}

/*
 * has_size
 *		Did the server allocate that many bytes for this, but for alignment?
 */
static bool
has_size(void *made, Size size)
{
	return GetMemoryChunkSpace(made) == GetMemoryChunkSpace(palloc(size));
}

/* filled_size -- up to where was the memory written to? */
static Size
filled_size(const Filled *filled)
{
	Size		size = sizeof(filled->bytes);

	while (size > 0 && filled->bytes[size - 1] == CANARY)
		size--;
	return size;
}
