/*-------------------------------------------------------------------------
 *
 * distributed.c
 *	  Tables that another library distributes or divides.
 *
 * The rows of a table of Citus are in shards, on this node and others, and those of
 * TimescaleDB's hypertables in chunks.  The library has a VACUUM of the table reach all of
 * them.  A VACUUM FULL by our hook would rewrite a table that is empty, and nothing else.
 * So the hook passes the statement on, and an option that the other library can't pass to
 * shards or chunks is an error.  Shards and chunks themselves are like any table.
 *
 * We know the libraries' catalogs by name only, and read them only if the extension is
 * there.  If they differ from what we know, every table counts as one of the library's.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "command/distributed.h"
#include "compat.h"

/*
 * A catalog of a library, with a row for each relation that it distributes or divides.
 * Some versions name the relation by its OID, others by schema and name.
 */
typedef struct OtherCatalog
{
	const char *name;
	const char *relid_column;
	const char *schema_column;
	const char *name_column;
	/* an int4: a relation with 0 there is like any table */
	const char *status_column;
	/* does a row make a VACUUM of the whole database the library's? */
	bool		is_for_database;

	/*
	 * what a relation is that is found here; NULL if no relation is named
	 * here
	 */
	const char *is_what;
} OtherCatalog;

/* A library that takes part in VACUUM. */
typedef struct OtherLibrary
{
	const char *extension;
	const char *schema;
	OtherCatalog catalogs[3];
	/* a Boolean setting by which it keeps out of VACUUM */
	const char *off_switch;
	/* does it vacuum the parts in this session, which has the adaptive delay? */
	bool		in_session;
	/* does its hook run VACUUMs without calling the hooks behind it? */
	bool		ends_vacuums;
	const char *hint;			/* what to do instead */
} OtherLibrary;

/* The library that a VACUUM is for, and the relation that is why, unless it is the database */
typedef struct Owner
{
	const OtherLibrary *library;
	Oid			relid;
	const char *is_what;
} Owner;

static const OtherLibrary libraries[] = {
	{
		.extension = "citus",
		.schema = "pg_catalog",
		.catalogs = {
			{"pg_dist_partition", "logicalrelid",.is_for_database = true,
			.is_what = "distributed by Citus"},

			/*
			 * a VACUUM of the database goes to all nodes, whatever tables
			 * there are
			 */
			{"pg_dist_node",.is_for_database = true}
		},
		.off_switch = "citus.enable_ddl_propagation",
		.hint = gettext_noop("Leave the option out and set cyclone.adaptive_delay on each node, or run the statement on each node, with the names of its shards, after SET citus.enable_ddl_propagation = off."),
	},
	{
		.extension = "timescaledb",
		.schema = "_timescaledb_catalog",
		.catalogs = {
			{"hypertable", "relid", "schema_name", "table_name",.is_for_database = true,
			.is_what = "divided into chunks by TimescaleDB"},
			/* a compressed chunk has a second table */
			{"chunk", "relid", "schema_name", "table_name", "status",
			.is_what = "a compressed or frozen chunk of TimescaleDB"},
			{"continuous_agg", NULL, "user_view_schema", "user_view_name",
			.is_what = "a continuous aggregate of TimescaleDB"}
		},
		.in_session = true,
		.ends_vacuums = true,
		.hint = gettext_noop("Leave the option out, or name other tables, or chunks that are neither compressed nor frozen."),
	},
};

static const char *option_in_the_way(const VacuumOptions *options, bool in_session);
static bool find_owner(List *relids, Owner *owner);
static bool library_is_present(const OtherLibrary *library);
static List *named_relations(List *rels);
static bool library_has_one(const OtherLibrary *library, List *relids, Owner *owner);
static Relation open_other_catalog(const OtherLibrary *library, const char *name);
static bool catalog_has_one(Relation rel, const OtherCatalog *catalog, List *relids,
							Owner *owner);
static AttrNumber find_column(Relation rel, const char *name, Oid type);
static Oid	read_relid(HeapTuple tuple, TupleDesc desc, AttrNumber relid_column,
					   AttrNumber schema_column, AttrNumber name_column);

/* distributed_is_for_other -- see distributed.h. */
bool
distributed_is_for_other(List *rels, const VacuumOptions *options)
{
	List	   *relids = rels == NIL ? NIL : named_relations(rels);
	bits32		flags = options->params.options;
	const char *refused;
	Owner		owner;

	Assert(IsTransactionState());

	if ((rels != NIL && relids == NIL) || !find_owner(relids, &owner))
		return false;

	refused = option_in_the_way(options, owner.library->in_session);
	if (refused != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 OidIsValid(owner.relid) ?
				 errmsg("%s cannot be used for \"%s\", which is %s",
						refused, get_rel_name(owner.relid), owner.is_what) :
				 errmsg("%s cannot be used for the whole database, which has tables %s",
						refused, owner.is_what),
				 errhint("%s", _(owner.library->hint))));
	if (flags & VACOPT_FULL)
		ereport((flags & VACOPT_VERBOSE) ? INFO : DEBUG1,
				OidIsValid(owner.relid) ?
				errmsg("leaving %s to the next library, as \"%s\" is %s",
					   options->is_repack ? "REPACK" : "VACUUM (FULL)",
					   get_rel_name(owner.relid), owner.is_what) :
				errmsg("leaving %s to the next library, as the database has tables %s",
					   options->is_repack ? "REPACK" : "VACUUM (FULL)", owner.is_what));
	return true;
}

/* option_in_the_way -- returns what another library can't do of these options, or NULL. */
static const char *
option_in_the_way(const VacuumOptions *options, bool in_session)
{
	bits32		flags = options->params.options;
	bool		has_delay = options->adaptive_delay != VACOPTVALUE_UNSPECIFIED;

	if (flags & VACOPT_INPLACE)
		return "VACUUM option FULL INPLACE";
	if (options->is_repack)
		return options->params.nworkers != 0 ? "REPACK option PARALLEL" : NULL;
	if (flags & VACOPT_FULL)
		return has_delay ? "VACUUM options FULL and ADAPTIVE_DELAY" :
			options->params.nworkers > 0 ? "VACUUM options FULL and PARALLEL" : NULL;
	return has_delay && !in_session ? "VACUUM option ADAPTIVE_DELAY" : NULL;
}

/* distributed_table_is_for_other -- see distributed.h. */
bool
distributed_table_is_for_other(Oid relid, const char **is_what)
{
	Owner		owner;

	Assert(IsTransactionState());
	Assert(CheckRelationOidLockedByMe(relid, AccessShareLock, true));

	if (!find_owner(list_make1_oid(relid), &owner))
		return false;
	*is_what = owner.is_what;
	return true;
}

/* find_owner -- is one of these relations, or if there are none the database, another library's? */
static bool
find_owner(List *relids, Owner *owner)
{
	for (int i = 0; i < lengthof(libraries); i++)
	{
		owner->library = &libraries[i];
		if (library_is_present(owner->library) && library_has_one(owner->library, relids, owner))
			return true;
	}
	return false;
}

/* distributed_other_ends_vacuums -- see distributed.h. */
bool
distributed_other_ends_vacuums(void)
{
	Assert(IsTransactionState());

	for (int i = 0; i < lengthof(libraries); i++)
	{
		if (libraries[i].ends_vacuums && library_is_present(&libraries[i]))
			return true;
	}
	return false;
}

/* library_is_present -- has this database the extension, and is it not switched off? */
static bool
library_is_present(const OtherLibrary *library)
{
	const char *value;

	if (!OidIsValid(get_extension_oid(library->extension, true)))
		return false;
	if (library->off_switch == NULL)
		return true;
	value = GetConfigOption(library->off_switch, true, false);
	return value == NULL || strcmp(value, "off") != 0;
}

/* named_relations -- the relations that a statement names, with their children. */
static List *
named_relations(List *rels)
{
	List	   *relids = NIL;

	foreach_node(VacuumRelation, named, rels)
	{
		Oid			relid = named->oid;

		if (!OidIsValid(relid))
			relid = RangeVarGetRelid(named->relation, NoLock, true);
		if (OidIsValid(relid))
			relids = list_concat_unique_oid(relids, find_all_inheritors(relid, NoLock, NULL));
	}
	return relids;
}

/*
 * library_has_one
 *		Is one of these relations the library's; or if there are none, the database?  If
 *		so, *owner says which relation.
 *
 * If a catalog is missing, or we don't know how to read it, the first relation counts as
 * the library's.
 */
static bool
library_has_one(const OtherLibrary *library, List *relids, Owner *owner)
{
	bool		found = false;

	owner->relid = relids == NIL ? InvalidOid : linitial_oid(relids);
	owner->is_what = library->catalogs[0].is_what;
	for (int i = 0; i < lengthof(library->catalogs) && !found; i++)
	{
		const OtherCatalog *catalog = &library->catalogs[i];
		Relation	rel;

		if (catalog->name == NULL)
			break;
		if (relids == NIL ? !catalog->is_for_database : catalog->is_what == NULL)
			continue;
		rel = open_other_catalog(library, catalog->name);
		if (rel == NULL)
			return true;
		found = catalog_has_one(rel, catalog, relids, owner);
		table_close(rel, AccessShareLock);
	}
	return found;
}

/* open_other_catalog -- returns a library's catalog, locked, or NULL if there is none. */
static Relation
open_other_catalog(const OtherLibrary *library, const char *name)
{
	Oid			schema = get_namespace_oid(library->schema, true);
	Oid			relid = OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;

	/* it may have been dropped meanwhile, or be a view in some version */
	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_RELATION)
		return NULL;
	return try_table_open(relid, AccessShareLock);
}

/*
 * catalog_has_one
 *		Is one of these relations in a catalog; or if there are none, any row?  Yes, too,
 *		if we can't read the catalog.
 *
 * If the relation is found, *owner says which it is; if the catalog can't be read, *owner
 * stays as it was.
 *
 * The scan takes a new snapshot, as the table isn't a system catalog: it sees all that
 * was committed before the call.
 */
static bool
catalog_has_one(Relation rel, const OtherCatalog *catalog, List *relids, Owner *owner)
{
	AttrNumber	relid_column = find_column(rel, catalog->relid_column, REGCLASSOID);
	AttrNumber	schema_column = find_column(rel, catalog->schema_column, NAMEOID);
	AttrNumber	name_column = find_column(rel, catalog->name_column, NAMEOID);
	AttrNumber	status_column = find_column(rel, catalog->status_column, INT4OID);
	bool		found = false;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (relids != NIL && relid_column == InvalidAttrNumber &&
		(schema_column == InvalidAttrNumber || name_column == InvalidAttrNumber))
		return true;

	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	if (relids == NIL)
		found = HeapTupleIsValid(systable_getnext(scan));
	while (!found && relids != NIL &&
		   HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Oid			relid;

		CHECK_FOR_INTERRUPTS();
		if (status_column != InvalidAttrNumber &&
			DatumGetInt32(heap_getattr(tuple, status_column, RelationGetDescr(rel), &isnull)) == 0 &&
			!isnull)
			continue;
		relid = read_relid(tuple, RelationGetDescr(rel), relid_column,
						   schema_column, name_column);
		found = OidIsValid(relid) && list_member_oid(relids, relid);
		if (found)
		{
			owner->relid = relid;
			owner->is_what = catalog->is_what;
		}
	}
	systable_endscan(scan);
	return found;
}

/* find_column -- returns a column's number; InvalidAttrNumber if there is none of this type. */
static AttrNumber
find_column(Relation rel, const char *name, Oid type)
{
	AttrNumber	column = name ? get_attnum(RelationGetRelid(rel), name) : InvalidAttrNumber;

	if (column == InvalidAttrNumber ||
		get_atttype(RelationGetRelid(rel), column) != type)
		return InvalidAttrNumber;
	return column;
}

/* read_relid -- returns the relation that a row of a catalog is about; InvalidOid if there is none. */
static Oid
read_relid(HeapTuple tuple, TupleDesc desc, AttrNumber relid_column,
		   AttrNumber schema_column, AttrNumber name_column)
{
	Datum		value;
	bool		isnull;
	Oid			schema;

	if (relid_column != InvalidAttrNumber)
	{
		value = heap_getattr(tuple, relid_column, desc, &isnull);
		return isnull ? InvalidOid : DatumGetObjectId(value);
	}

	value = heap_getattr(tuple, schema_column, desc, &isnull);
	schema = isnull ? InvalidOid : get_namespace_oid(NameStr(*DatumGetName(value)), true);
	value = heap_getattr(tuple, name_column, desc, &isnull);
	if (isnull || !OidIsValid(schema))
		return InvalidOid;
	return get_relname_relid(NameStr(*DatumGetName(value)), schema);
}
