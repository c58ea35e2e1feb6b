/*-------------------------------------------------------------------------
 *
 * bloat.c
 *	  The SQL function cyclone.estimate_bloat and the rows of the view
 *	  cyclone.bloat.
 *
 * There is a row for a table, its TOAST table and each index of both, with the estimate
 * (heap_bloat.c, btree_bloat.c, hnsw_bloat.c), and what the two forms of VACUUM FULL would make of the
 * relation.  README.md says what is locked, what damage does, and who may see the figures.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "bloat/bloat.h"
#include "engine/index/hnsw_page.h"
#include "library.h"
#include "server_check.h"
#include "transaction.h"

/* The most pages of each relation that are read for the view */
#define USUAL_SAMPLE_PAGES	5000

/* Standard errors to either side of an estimate, for a confidence of 95 % */
#define CONFIDENCE			1.96

typedef enum BloatColumn
{
	COLUMN_RELATION,
	COLUMN_KIND,
	COLUMN_SIZE,
	COLUMN_LIVE,
	COLUMN_DEAD,
	COLUMN_HELD,
	COLUMN_FREE,
	COLUMN_BLOAT,
	COLUMN_RATIO,
	COLUMN_ERROR,
	COLUMN_SAMPLED,
	COLUMN_PAGES,
	COLUMN_REWRITE_SIZE,
	COLUMN_REWRITE_DISK,
	COLUMN_REWRITE_LOCK,
	COLUMN_INPLACE_SIZE,
	COLUMN_INPLACE_BYTES,
	COLUMN_INPLACE_DISK,
	COLUMN_INPLACE_LOCK,
	BLOAT_COLUMNS
} BloatColumn;

/* A request, and its result */
typedef struct BloatReport
{
	bool		wait;
	uint32		most_pages;
	pg_prng_state prng;
	bool		in_place;		/* can VACUUM (FULL INPLACE) compact it? */
	bool		all_kinds;		/* estimate all that it builds anew, if
								 * roughly */
	bool		table_only;		/* without indexes and TOAST table */
	List	   *rows;			/* of RelationBloat; the table's is first */
} BloatReport;

/* A relation that is to be read */
typedef struct Reading
{
	BloatReport *report;
	Relation	rel;
	const BloatEstimate *heap;	/* of an index: its table's, NULL if that
								 * can't be read */
	BloatEstimate *estimate;
} Reading;

PG_FUNCTION_INFO_V1(pg_cyclone_estimate_bloat);

static void refuse_to_tell(Oid relid);
static bool can_estimate(Relation rel, int elevel);
static void begin_sample(BloatReport *report);
static bool estimate_relation(BloatReport *report, Relation rel, const BloatEstimate *heap,
							  BloatEstimate *estimate);
static void read_relation(void *arg);
static void read_index_roughly(const Reading *reading);
static void report_table(BloatReport *report, Oid relid);
static void report_toast(BloatReport *report, Oid relid);
static void report_heap(BloatReport *report, Relation rel);
static void report_index(BloatReport *report, Oid relid, const RelationBloat *table);
static Relation open_relation(const BloatReport *report, Oid relid, bool *locked_by_other);
static RelationBloat *add_row(BloatReport *report, Oid relid, char relkind);
static const char *kind_name(char relkind);
static void put_rows(const BloatReport *report, ReturnSetInfo *result);
static int64 inplace_saving(const BloatEstimate *estimate);
static void put_sizes(const BloatReport *report, const BloatEstimate *estimate,
					  Datum *values, bool *nulls);
static void put_command(const BloatReport *report, Datum *values, bool *nulls);

/*
 * pg_cyclone_estimate_bloat
 *		The rows of a table: estimate_bloat("table", sample_pages, seed, wait, indexes).
 *
 * The same seed gives the same sample, as long as the table isn't changed.  Without a seed
 * all samples of a table in one statement are the same, so the function may be declared
 * stable.  That is needed: the planner doesn't leave out a view's unused column with a
 * volatile function.
 *
 * Without wait there are no rows if the table is gone, if it can't be estimated, or if the
 * caller may not see its figures.
 */
Datum
pg_cyclone_estimate_bloat(PG_FUNCTION_ARGS)
{
	BloatReport report = {
		.wait = PG_ARGISNULL(3) || PG_GETARG_BOOL(3),
		.table_only = !PG_ARGISNULL(4) && !PG_GETARG_BOOL(4)
	};
	Oid			relid;

	server_refuse_if_unfit("estimates of bloat");
	library_begin_rows(fcinfo, BLOAT_COLUMNS);
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		return (Datum) 0;
	relid = PG_GETARG_OID(0);
	if (PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("sample_pages must be greater than zero")));
	report.most_pages = PG_GETARG_INT32(1);
	if (!bloat_may_be_told(relid))
	{
		if (report.wait)
			refuse_to_tell(relid);
		else
			return (Datum) 0;
	}

	pg_prng_seed(&report.prng, PG_ARGISNULL(2) ?
				 hash_combine64(GetCurrentStatementStartTimestamp(), relid) :
				 (uint64) PG_GETARG_INT64(2));
	report_table(&report, relid);
	put_rows(&report, (ReturnSetInfo *) fcinfo->resultinfo);
	return (Datum) 0;
}

/* refuse_to_tell -- raise an error: the user may not see figures of a table, if there is one. */
static void
refuse_to_tell(Oid relid)
{
	if (get_rel_name(relid) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to estimate the bloat of \"%s\"",
						get_rel_name(relid)),
				 errdetail("Only roles that may VACUUM it, and roles with privileges of the \"%s\" role, may.",
						   "pg_stat_scan_tables")));
}

/* bloat_could_free -- see bloat.h. */
double
bloat_could_free(Oid relid)
{
	BloatReport report = {.wait = false,.most_pages = USUAL_SAMPLE_PAGES,.all_kinds = true};
	double		bytes = -1;
	bool		is_toasts = false;

	Assert(ActiveSnapshotSet());
	Assert(OidIsValid(relid));

	begin_sample(&report);
	report_table(&report, relid);
	if (!report.in_place)
		return -1;
	foreach_ptr(RelationBloat, row, report.rows)
	{
		bool		has_figure = !row->is_missing && row->estimate.known;

		if (bytes < 0 && !has_figure)
			return -1;
		/* the index of the TOAST table, which is last, isn't built anew */
		if (is_toasts)
			break;
		is_toasts = row->relkind == RELKIND_TOASTVALUE;
		bytes = Max(bytes, 0) + (has_figure ? (double) inplace_saving(&row->estimate) : 0);
	}
	return bytes;
}

/* bloat_of_table -- see bloat.h. */
List *
bloat_of_table(Relation rel, uint32 most_pages, bool with_rest)
{
	BloatReport report = {.wait = true,.most_pages = most_pages,.all_kinds = true,
	.table_only = !with_rest};

	begin_sample(&report);
	report_heap(&report, rel);
	report_toast(&report, rel->rd_rel->reltoastrelid);
	return report.rows;
}

/* bloat_rebuilt_pages -- see bloat.h. */
bool
bloat_rebuilt_pages(Relation index, uint32 most_pages, BlockNumber *pages)
{
	BloatReport report = {.most_pages = most_pages,.all_kinds = true};
	BloatEstimate vacuumed = {0};
	BloatEstimate estimate = {0};

	begin_sample(&report);
	if (!estimate_relation(&report, index, &vacuumed, &estimate) || !estimate.known)
		return false;
	*pages = estimate.rewritten_pages;
	return true;
}

/* begin_sample -- have it choose pages that nobody foresees. */
static void
begin_sample(BloatReport *report)
{
	pg_prng_seed(&report->prng, pg_prng_uint64(&pg_global_prng_state));
}

/* bloat_may_be_told -- see bloat.h. */
bool
bloat_may_be_told(Oid relid)
{
	bool		is_missing = false;

	Assert(IsTransactionState());

	return has_privs_of_role(GetUserId(), ROLE_PG_STAT_SCAN_TABLES) ||
		pg_class_aclcheck_ext(relid, GetUserId(), ACL_MAINTAIN, &is_missing) == ACLCHECK_OK ||
		(!is_missing && !IsSharedRelation(relid) &&
		 object_ownercheck(DatabaseRelationId, MyDatabaseId, GetUserId()));
}

/* can_estimate -- can it be read?  If not, say why at elevel, and return false. */
static bool
can_estimate(Relation rel, int elevel)
{
	char		relkind = rel->rd_rel->relkind;

	if (relkind != RELKIND_RELATION && relkind != RELKIND_MATVIEW &&
		relkind != RELKIND_TOASTVALUE)
	{
		ereport(elevel,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot estimate the bloat of \"%s\"", RelationGetRelationName(rel)),
				 errdetail_relkind_not_supported(relkind),
				 relkind == RELKIND_PARTITIONED_TABLE ? errhint("Name its partitions, one by one.") :
				 relkind == RELKIND_INDEX ? errhint("Name its table \"%s\".",
													get_rel_name(rel->rd_index->indrelid)) : 0));
		return false;
	}
	if (RELATION_IS_OTHER_TEMP(rel))
	{
		ereport(elevel,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary tables of other sessions")));
		return false;
	}
	if (RecoveryInProgress() && !RelationIsPermanent(rel))
	{
		ereport(elevel,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary or unlogged relations during recovery")));
		return false;
	}
	return true;
}

/*
 * report_table
 *		Estimate a table, its indexes and its TOAST table.
 */
static void
report_table(BloatReport *report, Oid relid)
{
	bool		locked_by_other;
	Relation	rel = open_relation(report, relid, &locked_by_other);

	Assert(report->rows == NIL);
	Assert(report->most_pages > 0);

	if (locked_by_other)
		add_row(report, relid, get_rel_relkind(relid))->is_missing = true;
	if (rel == NULL && report->wait)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (rel == NULL)
		return;

	if (can_estimate(rel, report->wait ? ERROR : DEBUG1))
	{
		report->in_place = !IsCatalogRelation(rel) && !RelationIsUsedAsCatalogTable(rel) &&
			rel->rd_rel->relam == HEAP_TABLE_AM_OID;
		report_heap(report, rel);
		report_toast(report, rel->rd_rel->reltoastrelid);
	}
	relation_close(rel, AccessShareLock);
}

/* report_toast -- estimate a TOAST table and its index, if there is one. */
static void
report_toast(BloatReport *report, Oid relid)
{
	bool		locked_by_other;
	Relation	toast;

	if (!OidIsValid(relid) || report->table_only)
		return;
	toast = open_relation(report, relid, &locked_by_other);
	if (toast != NULL)
	{
		report_heap(report, toast);
		relation_close(toast, AccessShareLock);
	}
	else if (locked_by_other)
		add_row(report, relid, RELKIND_TOASTVALUE)->is_missing = true;
}

/* report_heap -- estimate an open table or TOAST table, and its indexes. */
static void
report_heap(BloatReport *report, Relation rel)
{
	RelationBloat *row = add_row(report, RelationGetRelid(rel), rel->rd_rel->relkind);
	List	   *indexes = report->table_only ? NIL : RelationGetIndexList(rel);

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));

	row->is_missing = !estimate_relation(report, rel, NULL, &row->estimate);
	foreach_oid(index, indexes)
		report_index(report, index, row);
	list_free(indexes);
}

/* report_index -- estimate an index of that table. */
static void
report_index(BloatReport *report, Oid relid, const RelationBloat *table)
{
	bool		locked_by_other;
	Relation	index = open_relation(report, relid, &locked_by_other);
	RelationBloat *row;

	if (index == NULL && !locked_by_other)
		return;
	row = add_row(report, relid, RELKIND_INDEX);
	row->is_missing = locked_by_other;
	if (locked_by_other)
		return;

	row->is_missing = !estimate_relation(report, index, table->is_missing ? NULL : &table->estimate,
										 &row->estimate);
	relation_close(index, AccessShareLock);
}

/*
 * estimate_relation
 *		Read an open relation, in a subtransaction.  Returns false, with a warning and an
 *		empty estimate, if it can't be read.
 */
static bool
estimate_relation(BloatReport *report, Relation rel, const BloatEstimate *heap,
				  BloatEstimate *estimate)
{
	Reading		reading = {.report = report,.rel = rel,.heap = heap,.estimate = estimate};
	ErrorContextCallback *stack = error_context_stack;
	ErrorData  *error;

	error = transaction_try(read_relation, &reading);
	if (error == NULL)
		return true;
	if (!transaction_error_is_about_data(error))
		ReThrowError(error);

	/* the error has the context already */
	error_context_stack = NULL;
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("cannot estimate the bloat of \"%s\": %s",
					RelationGetRelationName(rel), error->message),
			 error->detail != NULL ? errdetail_internal("%s", error->detail) : 0,
			 error->hint != NULL ? errhint("%s", error->hint) : 0,
			 error->context != NULL ? errcontext("%s", error->context) : 0));
	error_context_stack = stack;
	FreeErrorData(error);
	memset(estimate, 0, sizeof(BloatEstimate));
	return false;
}

/* read_relation -- for transaction_try. */
static void
read_relation(void *arg)
{
	const Reading *reading = arg;
	BloatReport *report = reading->report;
	Relation	rel = reading->rel;
	Oid			am = rel->rd_rel->relam;
	const char *reason;

	Assert(report->most_pages > 0);

	if (am == HEAP_TABLE_AM_OID)
		heap_bloat(rel, report->most_pages, &report->prng, reading->estimate);
	else if (am == BTREE_AM_OID && rel->rd_index->indisvalid && reading->heap != NULL)
		btree_bloat(rel, report->most_pages, &report->prng, reading->heap, reading->estimate);
	else if (rel->rd_rel->relkind == RELKIND_INDEX && rel->rd_index->indisvalid &&
			 hnsw_is_ours(rel, &reason))
		hnsw_bloat(rel, report->most_pages, &report->prng, reading->estimate);
	else
	{
		reading->estimate->pages = RelationGetNumberOfBlocks(rel);
		if (report->all_kinds && index_bloat_is_known(am) && rel->rd_index->indisvalid)
			read_index_roughly(reading);
	}
}

/* read_index_roughly -- how large FULL INPLACE would leave an index that is no btree. */
static void
read_index_roughly(const Reading *reading)
{
	BloatReport *report = reading->report;
	BloatEstimate *estimate = reading->estimate;
	double		pages = index_rebuilt_pages(reading->rel, report->most_pages, &report->prng);

	estimate->known = true;
	estimate->rewritten_pages = pages;
	estimate->inplace_pages = estimate->pages;
	if (pages < estimate->pages * (1 - ROUGHLY_BLOATED_FRACTION) &&
		!reading->rel->rd_index->indisexclusion)
		estimate->inplace_pages = pages;
}

/*
 * open_relation
 *		Open and lock a relation.  Returns NULL if it is gone, or if another session
 *		has locked it and the report doesn't wait.
 */
static Relation
open_relation(const BloatReport *report, Oid relid, bool *locked_by_other)
{
	Relation	rel;

	*locked_by_other = false;
	if (report->wait)
		return try_relation_open(relid, AccessShareLock);

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
	{
		*locked_by_other = true;
		return NULL;
	}
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
		UnlockRelationOid(relid, AccessShareLock);
	return rel;
}

/* add_row -- begin a row for this relation. */
static RelationBloat *
add_row(BloatReport *report, Oid relid, char relkind)
{
	RelationBloat *row = palloc0_object(RelationBloat);

	row->relid = relid;
	row->relkind = relkind;
	report->rows = lappend(report->rows, row);
	return row;
}

/* kind_name -- for the column kind. */
static const char *
kind_name(char relkind)
{
	switch (relkind)
	{
		case RELKIND_INDEX:
			return "index";
		case RELKIND_TOASTVALUE:
			return "TOAST table";
		case RELKIND_MATVIEW:
			return "materialized view";
		default:
			return "table";
	}
}

/* put_rows -- hand the rows to the executor. */
static void
put_rows(const BloatReport *report, ReturnSetInfo *result)
{
	foreach_ptr(RelationBloat, row, report->rows)
	{
		Datum		values[BLOAT_COLUMNS] = {0};
		bool		nulls[BLOAT_COLUMNS];

		memset(nulls, true, sizeof(nulls));
		values[COLUMN_RELATION] = ObjectIdGetDatum(row->relid);
		values[COLUMN_KIND] = CStringGetTextDatum(kind_name(row->relkind));
		nulls[COLUMN_RELATION] = nulls[COLUMN_KIND] = false;
		if (!row->is_missing)
			put_sizes(report, &row->estimate, values, nulls);
		if (foreach_current_index(row) == 0 && !row->is_missing)
			put_command(report, values, nulls);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

/* inplace_saving -- how many bytes VACUUM (FULL INPLACE) would give back of a relation. */
static int64
inplace_saving(const BloatEstimate *estimate)
{
	Assert(estimate->known);
	return ((int64) estimate->pages - (int64) Min(estimate->inplace_pages, estimate->pages)) * BLCKSZ;
}

/* put_sizes -- the columns about a single relation. */
static void
put_sizes(const BloatReport *report, const BloatEstimate *estimate,
		  Datum *values, bool *nulls)
{
	int64		size = (int64) estimate->pages * BLCKSZ;
	int64		rewritten = (int64) estimate->rewritten_pages * BLCKSZ;
	int64		saving = estimate->known ? inplace_saving(estimate) : 0;
	int64		bloat = Max(size - rewritten, 0);

	Assert(estimate->sampled_pages <= estimate->pages);
	Assert(estimate->known || estimate->sampled_pages == 0);

#define PUT(column, value) (values[column] = (value), nulls[column] = false)
	PUT(COLUMN_SIZE, Int64GetDatum(size));
	PUT(COLUMN_PAGES, Int64GetDatum(estimate->pages));
	PUT(COLUMN_SAMPLED, Int64GetDatum(estimate->sampled_pages));
	if (!estimate->known)
		return;

	PUT(COLUMN_LIVE, Int64GetDatum(estimate->live_bytes));
	PUT(COLUMN_DEAD, Int64GetDatum(estimate->dead_bytes));
	PUT(COLUMN_HELD, Int64GetDatum(estimate->held_bytes));
	PUT(COLUMN_FREE, Int64GetDatum(estimate->free_bytes));
	PUT(COLUMN_BLOAT, Int64GetDatum(bloat));
	PUT(COLUMN_RATIO, Float8GetDatum(size > 0 ? (double) bloat / size : 0));
	PUT(COLUMN_ERROR, Int64GetDatum(estimate->rewritten_error * CONFIDENCE * BLCKSZ));
	PUT(COLUMN_REWRITE_SIZE, Int64GetDatum(rewritten));
	if (report->in_place)
	{
		PUT(COLUMN_INPLACE_SIZE, Int64GetDatum(size - saving));
		PUT(COLUMN_INPLACE_BYTES, Int64GetDatum(saving));
	}
}

/*
 * put_command
 *		The columns about VACUUM FULL of the table, in its row.
 *
 * A rewrite needs disk space for a new copy of everything, FULL INPLACE for one of
 * the largest index.  A relation without an estimate counts with its present size.
 * If one could not be locked or read, or wasn't to be, not even that is known.
 */
static void
put_command(const BloatReport *report, Datum *values, bool *nulls)
{
	int64		all = 0;
	int64		largest_index = 0;
	bool		complete = !report->table_only;

	Assert(report->rows != NIL);

	foreach_ptr(RelationBloat, row, report->rows)
	{
		const BloatEstimate *estimate = &row->estimate;
		int64		size = (int64) (estimate->known ? estimate->rewritten_pages :
									estimate->pages) * BLCKSZ;

		complete &= !row->is_missing;
		all += size;
		if (row->relkind == RELKIND_INDEX)
			largest_index = Max(largest_index, size);
	}
	PUT(COLUMN_REWRITE_LOCK, CStringGetTextDatum("access exclusive"));
	if (complete)
		PUT(COLUMN_REWRITE_DISK, Int64GetDatum(all));
	if (report->in_place)
	{
		PUT(COLUMN_INPLACE_LOCK, CStringGetTextDatum("share update exclusive"));
		if (complete)
			PUT(COLUMN_INPLACE_DISK, Int64GetDatum(largest_index));
	}
#undef PUT
}
