/*-------------------------------------------------------------------------
 *
 * scope.c
 *	  Which tables are pg_cyclone's, as the settings have it.
 *
 * cyclone.databases and cyclone.tables are lists of patterns, so that the engine
 * can be used for one table, one database, or all of them.  An empty list is no
 * bound.  Code that takes a table from the server asks here first, for commands and
 * for autovacuum.  A table that isn't in both lists is the server's.
 *
 * Patterns are as in a shell (fnmatch).  One with a dot stands for a schema's and a
 * table's name, any other for a table's name.  A TOAST table goes with its table.
 *
 * The lists are parsed for each table, which costs little beside vacuuming one.
 * They are valid: check_patterns in settings.c has parsed them before.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fnmatch.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "scope.h"
#include "settings.h"

static bool list_matches(const char *list, const char *schema, const char *name);
static Oid	table_of_toast(Relation rel);

/*
 * scope_has_table
 *		Is a table, which is open, one for the engine?
 */
bool
scope_has_table(Relation rel)
{
	Assert(IsTransactionState() && rel != NULL);
	return scope_has(table_of_toast(rel));
}

/* scope_has -- the same for one that may not be open, and isn't a TOAST table; no if it is gone. */
bool
scope_has(Oid relid)
{
	char	   *schema;
	char	   *name;

	Assert(IsTransactionState());

	if (cyclone_databases[0] != '\0')
	{
		char	   *database = get_database_name(MyDatabaseId);

		if (database == NULL || !scope_has_database(database))
			return false;
	}
	if (cyclone_tables[0] == '\0')
		return true;

	name = get_rel_name(relid);
	schema = get_namespace_name(get_rel_namespace(relid));
	return name != NULL && schema != NULL && list_matches(cyclone_tables, schema, name);
}

/* scope_has_database -- is a database of this name in cyclone.databases? */
bool
scope_has_database(const char *name)
{
	return cyclone_databases[0] == '\0' || list_matches(cyclone_databases, NULL, name);
}

/*
 * list_matches
 *		Does a name match a pattern in a list, by itself or behind its schema's name, if
 *		that isn't NULL?  No if the list is invalid.
 */
static bool
list_matches(const char *list, const char *schema, const char *name)
{
	char	   *copy = pstrdup(list);
	char	   *full = schema != NULL ? psprintf("%s.%s", schema, name) : NULL;
	List	   *patterns;
	bool		found = false;

	if (SplitGUCList(copy, ',', &patterns))
		foreach_ptr(char, pattern, patterns)
			found |= fnmatch(pattern, full != NULL && strchr(pattern, '.') != NULL ? full : name, 0) == 0;
	list_free(patterns);
	return found;
}

/*
 * table_of_toast
 *		The table whose TOAST table this is; the relation itself if it is no TOAST table,
 *		or isn't named like one.
 */
static Oid
table_of_toast(Relation rel)
{
	Oid			owner;
	HeapTuple	tuple;

	if (rel->rd_rel->relkind != RELKIND_TOASTVALUE ||
		sscanf(RelationGetRelationName(rel), "pg_toast_%u", &owner) != 1)
		return RelationGetRelid(rel);

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(owner));
	if (!HeapTupleIsValid(tuple))
		return RelationGetRelid(rel);
	if (((Form_pg_class) GETSTRUCT(tuple))->reltoastrelid != RelationGetRelid(rel))
		owner = RelationGetRelid(rel);
	ReleaseSysCache(tuple);
	return owner;
}
