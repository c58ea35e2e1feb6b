/*-------------------------------------------------------------------------
 *
 * advice.c
 *	  Rows of the view cyclone.advice: how far a table is from autovacuum's
 *	  thresholds.
 *
 * The thresholds are computed as an autovacuum worker computes them, in the
 * same precision, from the same options, settings and counters.  A TOAST table
 * without options of its own has those of its table.  test_advice.py stages
 * tables on both sides of each threshold and sees which ones autovacuum takes.
 *
 * Every role sees counters, thresholds and ages, as in PostgreSQL's views.  How long
 * the last autovacuum took is for roles that see autovacuum's runs in cyclone.history.
 * The width of rows, by which bloat is suspected, is for roles that may see bloat.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/reloptions.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/autovacuum.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "autovacuum/table_log.h"
#include "bloat/bloat.h"
#include "compat.h"
#include "debug_point.h"
#include "declared_rows.h"
#include "history/history_rows.h"
#include "library.h"
#include "server_check.h"

/* The bloat of a shorter table isn't worth a look. */
#define SHORT_TABLE		(INT64CONST(8) * 1024 * 1024)

typedef enum AdviceColumn
{
	COLUMN_ENABLED,
	COLUMN_DEAD,
	COLUMN_DEAD_THRESHOLD,
	COLUMN_INSERTED,
	COLUMN_INSERT_THRESHOLD,
	COLUMN_CHANGED,
	COLUMN_ANALYZE_THRESHOLD,
	COLUMN_XID_AGE,
	COLUMN_XID_LIMIT,
	COLUMN_MULTIXACT_AGE,
	COLUMN_MULTIXACT_LIMIT,
	COLUMN_DUE,
	COLUMN_COUNTED_SINCE,
	COLUMN_EXPECTED_SECONDS,
	COLUMN_EXPECTED_FROM,
	COLUMN_PACKED_BYTES,
	ADVICE_COLUMNS
} AdviceColumn;

/* Autovacuum's thresholds for one table */
typedef struct Thresholds
{
	bool		enabled;
	float4		dead;
	float4		inserted;		/* negative: none */
	float4		changed;
	int			freeze_max_age;
	int			multixact_freeze_max_age;
} Thresholds;

PG_FUNCTION_INFO_V1(pg_cyclone_advice_row);
PG_FUNCTION_INFO_V1(pg_cyclone_session_of_schema);
PG_FUNCTION_INFO_V1(pg_cyclone_xid_rate);

static bool is_vacuumed(char relkind);
static AutoVacOpts *options_of(HeapTuple tuple);
static void set_thresholds(Thresholds *thresholds, const AutoVacOpts *opts,
						   Form_pg_class form);
static const char *due_for(const Thresholds *thresholds, Form_pg_class form,
						   const PgStat_StatTabEntry *entry);
static void put_counters(const Thresholds *thresholds,
						 const PgStat_StatTabEntry *entry, Datum *values, bool *nulls);
static void put_expected(Form_pg_class form, const PgStat_StatTabEntry *entry,
						 Datum *values, bool *nulls);
static double packed_bytes(Form_pg_class form);

#define PUT(column, value) (values[column] = (value), nulls[column] = false)

/*
 * pg_cyclone_advice_row
 *		The row of a table: advice_row(relation_oid, main_oid), where main_oid is
 *		the table that a TOAST table belongs to.  NULL if it is gone, or if
 *		autovacuum doesn't come to relations of its kind.
 *
 * Every role may call it, with any OID.
 */
Datum
pg_cyclone_advice_row(PG_FUNCTION_ARGS)
{
	Oid			relid;
	HeapTuple	tuple;
	HeapTuple	owner = NULL;
	Form_pg_class form;
	AutoVacOpts *opts;
	Thresholds	thresholds;
	PgStat_StatTabEntry *entry;
	const char *due;
	double		packed;
	TupleDesc	desc;
	Datum		values[ADVICE_COLUMNS] = {0};
	bool		nulls[ADVICE_COLUMNS];

	server_refuse_if_unfit("cyclone.advice");
	desc = declared_rows_describe(fcinfo, lengthof(values));
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	relid = PG_GETARG_OID(0);
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		PG_RETURN_NULL();
	form = (Form_pg_class) GETSTRUCT(tuple);
	if (!is_vacuumed(form->relkind))
	{
		ReleaseSysCache(tuple);
		PG_RETURN_NULL();
	}

	opts = options_of(tuple);
	if (opts == NULL && form->relkind == RELKIND_TOASTVALUE && !PG_ARGISNULL(1))
	{
		owner = SearchSysCache1(RELOID, ObjectIdGetDatum(PG_GETARG_OID(1)));
		if (HeapTupleIsValid(owner))
			opts = options_of(owner);
	}
	set_thresholds(&thresholds, opts, form);
	entry = compat_fetch_table_stats(form->relisshared, relid);

	memset(nulls, true, sizeof(nulls));
	PUT(COLUMN_ENABLED, BoolGetDatum(thresholds.enabled));
	put_counters(&thresholds, entry, values, nulls);
	if (TransactionIdIsNormal(form->relfrozenxid))
		PUT(COLUMN_XID_AGE, Int32GetDatum((int32) (ReadNextTransactionId() - form->relfrozenxid)));
	PUT(COLUMN_XID_LIMIT, Int32GetDatum(thresholds.freeze_max_age));
	if (MultiXactIdIsValid(form->relminmxid))
		PUT(COLUMN_MULTIXACT_AGE, Int32GetDatum((int32) (ReadNextMultiXactId() - form->relminmxid)));
	PUT(COLUMN_MULTIXACT_LIMIT, Int32GetDatum(thresholds.multixact_freeze_max_age));
	due = due_for(&thresholds, form, entry);
	if (due != NULL)
		PUT(COLUMN_DUE, CStringGetTextDatum(due));
	put_expected(form, entry, values, nulls);
	packed = packed_bytes(form);
	if (packed > 0)
		PUT(COLUMN_PACKED_BYTES, Float8GetDatum(packed));

	ReleaseSysCache(tuple);
	if (HeapTupleIsValid(owner))
		ReleaseSysCache(owner);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/* is_vacuumed -- does autovacuum come to relations of this kind? */
static bool
is_vacuumed(char relkind)
{
	return relkind == RELKIND_RELATION || relkind == RELKIND_MATVIEW ||
		relkind == RELKIND_TOASTVALUE;
}

/*
 * options_of
 *		Return a relation's options for autovacuum; NULL if it has no options, or
 *		is no table.
 */
static AutoVacOpts *
options_of(HeapTuple tuple)
{
	bytea	   *options;
	Relation	pg_class;

	if (!is_vacuumed(((Form_pg_class) GETSTRUCT(tuple))->relkind) ||
		heap_attisnull(tuple, Anum_pg_class_reloptions, NULL))
		return NULL;
	pg_class = table_open(RelationRelationId, AccessShareLock);
	options = extractRelOptions(tuple, RelationGetDescr(pg_class), NULL);
	table_close(pg_class, AccessShareLock);
	return options != NULL ? &((StdRdOptions *) options)->autovacuum : NULL;
}

/* set_thresholds -- set those of a table with these options. */
static void
set_thresholds(Thresholds *thresholds, const AutoVacOpts *opts, Form_pg_class form)
{
	static const AutoVacOpts none = {
		.enabled = true,
		.vacuum_threshold = -1,
		.vacuum_ins_threshold = -2,
		.analyze_threshold = -1,
		.freeze_max_age = -1,
		.multixact_freeze_max_age = -1,
		.vacuum_scale_factor = -1,
		.vacuum_ins_scale_factor = -1,
		.analyze_scale_factor = -1
	};
	const AutoVacOpts *given = opts != NULL ? opts : &none;
	float4		rows = Max(form->reltuples, 0);

	/* a standby doesn't know how many members there are */
	int			multixact_limit = RecoveryInProgress() ?
		autovacuum_multixact_freeze_max_age :
		DEBUG_LIMIT(multixact_limit, MultiXactMemberFreezeThreshold());
	int			most = compat_vacuum_max_threshold(opts);
	int			base;
	float4		scale;

	thresholds->enabled = given->enabled;

	base = given->vacuum_threshold >= 0 ? given->vacuum_threshold : autovacuum_vac_thresh;
	scale = given->vacuum_scale_factor >= 0 ? given->vacuum_scale_factor : autovacuum_vac_scale;
	thresholds->dead = (float4) base + scale * rows;
	if (most >= 0 && thresholds->dead > (float4) most)
		thresholds->dead = (float4) most;

	base = given->vacuum_ins_threshold >= -1 ? given->vacuum_ins_threshold : autovacuum_vac_ins_thresh;
	scale = given->vacuum_ins_scale_factor >= 0 ? given->vacuum_ins_scale_factor : autovacuum_vac_ins_scale;
	thresholds->inserted = base < 0 ? -1 :
		(float4) base + scale * rows * compat_unfrozen_share(form);

	base = given->analyze_threshold >= 0 ? given->analyze_threshold : autovacuum_anl_thresh;
	scale = given->analyze_scale_factor >= 0 ? given->analyze_scale_factor : autovacuum_anl_scale;
	thresholds->changed = (float4) base + scale * rows;

	thresholds->freeze_max_age = given->freeze_max_age >= 0 ?
		Min(given->freeze_max_age, autovacuum_freeze_max_age) : autovacuum_freeze_max_age;
	thresholds->multixact_freeze_max_age = given->multixact_freeze_max_age >= 0 ?
		Min(given->multixact_freeze_max_age, multixact_limit) : multixact_limit;
}

/*
 * due_for
 *		Why the next autovacuum worker that comes to this database takes the table;
 *		NULL if it doesn't.
 */
static const char *
due_for(const Thresholds *thresholds, Form_pg_class form,
		const PgStat_StatTabEntry *entry)
{
	TransactionId xid_limit = ReadNextTransactionId() - thresholds->freeze_max_age;
	MultiXactId multixact_limit = ReadNextMultiXactId() - thresholds->multixact_freeze_max_age;

	Assert(thresholds->freeze_max_age >= 0 && thresholds->multixact_freeze_max_age >= 0);

	if (RecoveryInProgress() || form->relpersistence == RELPERSISTENCE_TEMP)
		return NULL;
	/* IDs that wrap around pass over the first ones, which are special */
	if (xid_limit < FirstNormalTransactionId)
		xid_limit -= FirstNormalTransactionId;
	if (multixact_limit < FirstMultiXactId)
		multixact_limit -= FirstMultiXactId;

	if (TransactionIdIsNormal(form->relfrozenxid) &&
		TransactionIdPrecedes(form->relfrozenxid, xid_limit))
		return "age of transaction IDs";
	if (MultiXactIdIsValid(form->relminmxid) &&
		MultiXactIdPrecedes(form->relminmxid, multixact_limit))
		return "age of multixact IDs";
	if (!thresholds->enabled || entry == NULL || !AutoVacuumingActive())
		return NULL;
	if ((float4) entry->dead_tuples > thresholds->dead)
		return "dead rows";
	if (thresholds->inserted >= 0 && (float4) entry->ins_since_vacuum > thresholds->inserted)
		return "inserted rows";
	return NULL;
}

/* put_counters -- put the counters, and what autovacuum compares them with. */
static void
put_counters(const Thresholds *thresholds, const PgStat_StatTabEntry *entry,
			 Datum *values, bool *nulls)
{
	PUT(COLUMN_DEAD, Int64GetDatum(entry != NULL ? entry->dead_tuples : 0));
	PUT(COLUMN_DEAD_THRESHOLD, Float8GetDatum(thresholds->dead));
	PUT(COLUMN_INSERTED, Int64GetDatum(entry != NULL ? entry->ins_since_vacuum : 0));
	if (thresholds->inserted >= 0)
		PUT(COLUMN_INSERT_THRESHOLD, Float8GetDatum(thresholds->inserted));
	PUT(COLUMN_CHANGED, Int64GetDatum(entry != NULL ? entry->mod_since_analyze : 0));
	PUT(COLUMN_ANALYZE_THRESHOLD, Float8GetDatum(thresholds->changed));
	if (entry != NULL && Max(entry->last_vacuum_time, entry->last_autovacuum_time) != 0)
		PUT(COLUMN_COUNTED_SINCE,
			TimestampTzGetDatum(Max(entry->last_vacuum_time, entry->last_autovacuum_time)));
}

/*
 * put_expected
 *		How long an autovacuum of the table is likely to take.
 *
 * The table log is empty after a restart; the history isn't.  A role that may not
 * see autovacuum's runs gets the average that pg_stat_all_tables shows to every role.
 */
static void
put_expected(Form_pg_class form, const PgStat_StatTabEntry *entry,
			 Datum *values, bool *nulls)
{
	TableKey	key = {
		.database = form->relisshared ? InvalidOid : MyDatabaseId,
		.relid = form->oid
	};
	double		seconds;

	if (history_is_visible(InvalidOid) &&
		(table_log_last_seconds(&key, &seconds) ||
		 history_rows_last_autovacuum(key.database, key.relid, &seconds)))
	{
		PUT(COLUMN_EXPECTED_SECONDS, Float8GetDatum(seconds));
		PUT(COLUMN_EXPECTED_FROM, CStringGetTextDatum("last autovacuum"));
	}
	else if (entry != NULL && entry->autovacuum_count > 0 && compat_total_autovacuum_ms(entry) >= 0)
	{
		PUT(COLUMN_EXPECTED_SECONDS, Float8GetDatum((double) compat_total_autovacuum_ms(entry) /
													entry->autovacuum_count / 1000));
		PUT(COLUMN_EXPECTED_FROM, CStringGetTextDatum("average of autovacuums"));
	}
}

/*
 * packed_bytes
 *		Return about how long a table would be without bloat, by the statistics of
 *		ANALYZE; 0 if there are none, if the table is short, or if the user may not
 *		see its bloat.
 *
 * Only good enough to choose the tables that are worth a closer look.
 */
static double
packed_bytes(Form_pg_class form)
{
	int32		width = 0;

	if (form->relkind == RELKIND_TOASTVALUE || form->reltuples < 0 ||
		(int64) form->relpages * BLCKSZ < SHORT_TABLE || !bloat_may_be_told(form->oid))
		return 0;
	for (AttrNumber i = 1; i <= form->relnatts; i++)
		width += get_attavgwidth(form->oid, i);
	if (width == 0 && form->reltuples > 0)
		return 0;
	return Max(form->reltuples, 1) *
		(double) (MAXALIGN(SizeofHeapTupleHeader) + MAXALIGN(width) + sizeof(ItemIdData));
}

/*
 * pg_cyclone_session_of_schema
 *		The process ID of the session whose temporary tables are in this schema;
 *		NULL if there is none, as after a crash.
 */
Datum
pg_cyclone_session_of_schema(PG_FUNCTION_ARGS)
{
	Oid			schema = PG_GETARG_OID(0);
	ProcNumber	number = GetTempNamespaceProcNumber(schema);

	refuse_without_preloading();
	if (number == INVALID_PROC_NUMBER ||
		checkTempNamespaceStatus(schema) != TEMP_NAMESPACE_IN_USE)
		PG_RETURN_NULL();
	Assert(number >= 0 && number < ProcGlobal->allProcCount);
	PG_RETURN_INT32(GetPGProcByNumber(number)->pid);
}

/*
 * pg_cyclone_xid_rate
 *		How many transaction IDs and multixact IDs were assigned since the last
 *		checkpoint, and how many seconds ago that was.
 */
Datum
pg_cyclone_xid_rate(PG_FUNCTION_ARGS)
{
	ControlFileData *control;
	bool		crc_ok;
	TupleDesc	desc;
	Datum		values[3] = {0};
	bool		nulls[3] = {0};
	double		seconds;
	TimestampTz checkpoint;

	refuse_without_preloading();
	desc = declared_rows_describe(fcinfo, lengthof(values));

	LWLockAcquire(ControlFileLock, LW_SHARED);
	control = get_controlfile(DataDir, &crc_ok);
	LWLockRelease(ControlFileLock);
	if (!crc_ok)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("calculated CRC checksum does not match value stored in file")));
	checkpoint = time_t_to_timestamptz(control->checkPointCopy.time);
	seconds = (double) (GetCurrentTimestamp() - checkpoint) / USECS_PER_SEC;
	values[0] = Int64GetDatum((int32) (ReadNextTransactionId() -
									   XidFromFullTransactionId(control->checkPointCopy.nextXid)));
	values[1] = Int64GetDatum((int32) (ReadNextMultiXactId() - control->checkPointCopy.nextMulti));
	/* the checkpoint's time is in whole seconds */
	values[2] = Float8GetDatum(Max(seconds, 1));
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}
