/*-------------------------------------------------------------------------
 *
 * declared_rows.c
 *	  Do SQL functions return rows as they are declared?
 *
 * The library and the extension's objects in a database may have different
 * versions.  New packages bring a new library with the server's next start, and
 * the objects remain as they were until ALTER EXTENSION ... UPDATE runs in that
 * database.  CREATE EXTENSION may also find new scripts while the server still
 * has the old library.  So a function may be declared with fewer columns than the
 * library fills in, or with more, which would be read from behind its arrays.
 *
 * All our functions that return rows call these first.  A declaration with
 * another number of columns is an error, whose hint says what to do.  Types are
 * not compared: so a change of a column's type needs another number of columns,
 * or another name of the C function.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "nodes/execnodes.h"
#include "utils/lsyscache.h"

#include "declared_rows.h"

static void check_columns(FunctionCallInfo fcinfo, TupleDesc desc, int columns);

/* declared_rows_begin -- see declared_rows.h. */
void
declared_rows_begin(FunctionCallInfo fcinfo, int columns)
{
	Assert(fcinfo != NULL && columns > 0);
	InitMaterializedSRF(fcinfo, 0);
	check_columns(fcinfo, ((ReturnSetInfo *) fcinfo->resultinfo)->setDesc, columns);
}

/* declared_rows_describe -- see declared_rows.h. */
TupleDesc
declared_rows_describe(FunctionCallInfo fcinfo, int columns)
{
	TupleDesc	desc;

	Assert(fcinfo != NULL && columns > 0);

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	check_columns(fcinfo, desc, columns);
	return BlessTupleDesc(desc);
}

/* check_columns -- raise an error if the function is declared with another number of columns. */
static void
check_columns(FunctionCallInfo fcinfo, TupleDesc desc, int columns)
{
	Assert(columns > 0);

	if (desc->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s does not fit the library of pg_cyclone",
						get_func_name(fcinfo->flinfo->fn_oid)),
				 errdetail("It is declared with %d columns, and the library has %d.",
						   desc->natts, columns),
				 errhint("Say ALTER EXTENSION pg_cyclone UPDATE in this database, or restart the server if it still has the older library.")));
}
