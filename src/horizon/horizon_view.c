/*-------------------------------------------------------------------------
 *
 * horizon_view.c
 *	  The rows of the view cyclone.horizon.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "horizon/horizon.h"
#include "library.h"
#include "server_check.h"

typedef enum HorizonColumn
{
	COLUMN_KIND,
	COLUMN_PID,
	COLUMN_DATABASE,
	COLUMN_EVERYWHERE,
	COLUMN_USER,
	COLUMN_BACKEND_TYPE,
	COLUMN_APPLICATION,
	COLUMN_STATE,
	COLUMN_QUERY,
	COLUMN_NAME,
	COLUMN_LOGICAL,
	COLUMN_SINCE,
	COLUMN_XMIN,
	COLUMN_CATALOG_XMIN,
	COLUMN_MULTIXACT_AGE,
	COLUMN_IS_OLDEST,
	COLUMN_IS_OLDEST_FOR_CATALOGS,
	HORIZON_COLUMNS
} HorizonColumn;

/* in the order of HolderKind */
static const char *const kind_names[] = {
	"session", "prepared transaction", "replication slot", "standby",
};

PG_FUNCTION_INFO_V1(pg_cyclone_horizon);

static void put_holder(ReturnSetInfo *result, List *holders, const HorizonHolder *holder);
static bool is_oldest(List *holders, const HorizonHolder *holder, HorizonScope scope);

/*
 * pg_cyclone_horizon
 *		A row for each holder, the oldest first.
 */
Datum
pg_cyclone_horizon(PG_FUNCTION_ARGS)
{
	List	   *holders;

	server_refuse_if_unfit("cyclone.horizon");
	library_begin_rows(fcinfo, HORIZON_COLUMNS);
	holders = horizon_holders(GetUserId());
	foreach_ptr(HorizonHolder, holder, holders)
		put_holder((ReturnSetInfo *) fcinfo->resultinfo, holders, holder);
	return (Datum) 0;
}

/* put_holder -- a row of the view. */
static void
put_holder(ReturnSetInfo *result, List *holders, const HorizonHolder *holder)
{
	Datum		values[HORIZON_COLUMNS] = {0};
	bool		nulls[HORIZON_COLUMNS];

	Assert(holder->kind < lengthof(kind_names));
	memset(nulls, true, sizeof(nulls));
#define PUT(column, value) (values[column] = (value), nulls[column] = false)
#define PUT_TEXT(column, text) \
	do { if ((text) != NULL) PUT(column, CStringGetTextDatum(text)); } while (0)
	PUT(COLUMN_KIND, CStringGetTextDatum(kind_names[holder->kind]));
	if (holder->pid != 0)
		PUT(COLUMN_PID, Int32GetDatum(holder->pid));
	if (OidIsValid(holder->database))
		PUT(COLUMN_DATABASE, ObjectIdGetDatum(holder->database));
	PUT(COLUMN_EVERYWHERE, BoolGetDatum(holder->everywhere));
	if (OidIsValid(holder->user))
		PUT(COLUMN_USER, ObjectIdGetDatum(holder->user));
	PUT_TEXT(COLUMN_BACKEND_TYPE, holder->backend_type);
	PUT_TEXT(COLUMN_APPLICATION, holder->application);
	PUT_TEXT(COLUMN_STATE, holder->state);
	PUT_TEXT(COLUMN_QUERY, holder->query);
	PUT_TEXT(COLUMN_NAME, holder->name);
	PUT(COLUMN_LOGICAL, BoolGetDatum(holder->logical));
	if (holder->since != 0)
		PUT(COLUMN_SINCE, TimestampTzGetDatum(holder->since));
	if (TransactionIdIsValid(holder->xmin))
		PUT(COLUMN_XMIN, TransactionIdGetDatum(holder->xmin));
	if (TransactionIdIsValid(holder->catalog_xmin))
		PUT(COLUMN_CATALOG_XMIN, TransactionIdGetDatum(holder->catalog_xmin));
	if (holder->may_hold_multixact)
		PUT(COLUMN_MULTIXACT_AGE,
			Int32GetDatum((int32) (ReadNextMultiXactId() - GetOldestMultiXactId())));
	PUT(COLUMN_IS_OLDEST, BoolGetDatum(is_oldest(holders, holder, SCOPE_DATABASE)));
	PUT(COLUMN_IS_OLDEST_FOR_CATALOGS,
		BoolGetDatum(is_oldest(holders, holder, SCOPE_CATALOG)));
#undef PUT
#undef PUT_TEXT

	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/*
 * is_oldest
 *		Does VACUUM wait for this one first, in its database, or in ours if it
 *		holds the tables of all?
 */
static bool
is_oldest(List *holders, const HorizonHolder *holder, HorizonScope scope)
{
	Oid			database = holder->everywhere || !OidIsValid(holder->database) ?
		MyDatabaseId : holder->database;
	TransactionId xid = horizon_of(holder, scope, database);

	if (!TransactionIdIsValid(xid))
		return false;
	foreach_ptr(HorizonHolder, other, holders)
	{
		TransactionId its_xid = horizon_of(other, scope, database);

		if (TransactionIdIsValid(its_xid) && TransactionIdPrecedes(its_xid, xid))
			return false;
	}
	return true;
}
