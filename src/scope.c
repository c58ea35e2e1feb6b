/*-------------------------------------------------------------------------
 *
 * scope.c
 *	  Which tables are pg_cyclone's, as the settings have it.
 *
 * cyclone.databases and cyclone.tables are lists of patterns, so that the engine
 * can be let loose on one table, one database, all of them.  An empty list is no
 * bound.  Whoever takes a table from the server asks here first, for commands and
 * for autovacuum; what isn't in both lists is the server's.
 *
 * A pattern is as in a shell, and fnmatch's.  One with a dot is of a schema's and a
 * table's name, any other of a table's name.  A TOAST table goes with its table.
 *
 * The lists are taken apart for each table, which is nothing beside vacuuming one.
 * They can be, as settings_check_patterns has tried it.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fnmatch.h>

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "scope.h"
#include "settings.h"

static Oid	table_of_toast(Relation rel);

/*
 * scope_has_table
 *		Is a table, which is open, one for the engine?
 */
bool
scope_has_table(Relation rel)
{
	Oid			relid;
	char	   *schema;
	char	   *name;

	if (cyclone_databases[0] != '\0')
	{
		char	   *database = get_database_name(MyDatabaseId);

		if (database == NULL || !scope_matches(cyclone_databases, NULL, database))
			return false;
	}
	if (cyclone_tables[0] == '\0')
		return true;

	relid = table_of_toast(rel);
	name = get_rel_name(relid);
	schema = get_namespace_name(get_rel_namespace(relid));
	return name != NULL && schema != NULL && scope_matches(cyclone_tables, schema, name);
}

/*
 * scope_matches
 *		Is there a pattern in a list that a name matches, by itself or behind its
 *		schema's, if there is one?  Nothing matches what is no list.
 */
bool
scope_matches(const char *list, const char *schema, const char *name)
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
 *		The table whose TOAST table this is; itself if it is none, or isn't named as
 *		they are.
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
