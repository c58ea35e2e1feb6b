/*-------------------------------------------------------------------------
 *
 * declared_rows.c
 *	  Do SQL functions return rows as they are declared?
 *
 * The library and the extension's objects in a database are not of one
 * version all the time.  New packages bring a new library with the server's
 * next start, and the objects remain what they were until somebody says ALTER
 * EXTENSION ... UPDATE in that database; CREATE EXTENSION may also find new
 * scripts while the server still has the old library.  So a function may have
 * been declared with fewer columns than the library fills in, or with more,
 * which would be read from behind its arrays.
 *
 * All our functions that return rows come here first, and a declaration with
 * another number of columns is an error, with what to do.  Nothing compares
 * types: so whoever changes a column's type gives the function another number
 * of columns, or another name of its C function.
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

/*
 * begin_rows
 *		Begin the result of a function that returns a set of rows of so many
 *		columns.  Raises an error if it is declared otherwise.
 *
 * Rows go to setResult of the function's ReturnSetInfo, described by setDesc.
 */
void
begin_rows(FunctionCallInfo fcinfo, int columns)
{
	InitMaterializedSRF(fcinfo, 0);
	check_columns(fcinfo, ((ReturnSetInfo *) fcinfo->resultinfo)->setDesc, columns);
}

/*
 * row_description
 *		Describe the one row, of so many columns, that a function returns.
 *		Raises an error if it is declared otherwise.
 */
TupleDesc
row_description(FunctionCallInfo fcinfo, int columns)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	check_columns(fcinfo, desc, columns);
	return BlessTupleDesc(desc);
}

/* check_columns -- raise an error if the function is declared with another number of columns. */
static void
check_columns(FunctionCallInfo fcinfo, TupleDesc desc, int columns)
{
	if (desc->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s does not fit the library of pg_cyclone",
						get_func_name(fcinfo->flinfo->fn_oid)),
				 errdetail("It is declared with %d columns, and the library has %d.",
						   desc->natts, columns),
				 errhint("Say ALTER EXTENSION pg_cyclone UPDATE in this database, or restart the server if it still has the older library.")));
}
