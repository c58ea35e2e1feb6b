/*-------------------------------------------------------------------------
 *
 * distributed.c
 *	  Tables that another library distributes or divides.
 *
 * The rows of a table of Citus are in shards, on this node and others, and
 * those of TimescaleDB's hypertables in chunks.  Those libraries have a VACUUM of
 * the table reach all of them: Citus sends a statement for each shard to its node,
 * TimescaleDB names the chunks to the server.  If our hook ran a VACUUM FULL of such a
 * table, it would rewrite a table that is empty, and nothing else.  So it passes the
 * statement on, and what the other library can't do is an error.  Shards and chunks
 * themselves are like any table.
 *
 * A REPACK is like a VACUUM FULL.
 *
 * A lazy VACUUM goes on to the other library in any case.  A LATENCY_TARGET holds in
 * this session: for chunks, but not for shards.
 *
 * Citus doesn't know our options.  If it can run our commands on its nodes,
 * cluster/cluster_vacuum.c sends them a VACUUM with such options that names tables of
 * Citus (distributed_is_for_cluster).
 *
 * We know the libraries' catalogs by name only, and read them only if the extension is
 * there.  If they differ from what we know, any table may be one of the library's, and
 * counts as one.
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
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "cluster/citus.h"
#include "command/distributed.h"
#include "compat.h"

/*
 * A catalog with a row for each relation that a library distributes or divides.  Some
 * versions name the relation by its OID, others by schema and name.  A column that is
 * NULL here is in no version.
 */
typedef struct OtherCatalog
{
	const char *name;
	const char *relid_column;
	const char *schema_column;
	const char *name_column;
	/* an int4: a relation with 0 there is like any table */
	const char *status_column;
	/* what a relation is that is found here, for messages */
	const char *is_what;
} OtherCatalog;

/* A library that takes part in VACUUM. */
typedef struct OtherLibrary
{
	const char *extension;
	const char *schema;
	OtherCatalog catalogs[3];
	/* a VACUUM without tables is the library's if one of these has a row */
	const char *database_catalogs[2];
	/* a Boolean setting by which it keeps out of VACUUM */
	const char *off_switch;
	/* does it vacuum the parts in this session? */
	bool		in_session;

	/*
	 * does its hook run VACUUM statements without calling the hooks behind
	 * it?
	 */
	bool		ends_vacuums;
	/* can it run commands on other nodes for us?  NULL if not */
	bool		(*can_run) (void);
	/* for messages: what its tables are, and what to do instead */
	const char *are_what;
	const char *inplace_hint;
	const char *target_hint;
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
			{
				.name = "pg_dist_partition",
				.relid_column = "logicalrelid",
				.is_what = "distributed by Citus"
			}
		},

		/*
		 * a VACUUM without tables goes to all nodes, whatever tables there
		 * are
		 */
		.database_catalogs = {"pg_dist_partition", "pg_dist_node"},
		.off_switch = "citus.enable_ddl_propagation",
		.can_run = citus_can_run,
		.are_what = "distributed by Citus",
		.inplace_hint = gettext_noop("Name the tables, or run it on each node, with citus.enable_ddl_propagation off, for the shards or the whole database."),
		.target_hint = gettext_noop("Name the tables, or set cyclone.latency_target on each node instead."),
	},
	{
		.extension = "timescaledb",
		.schema = "_timescaledb_catalog",
		.catalogs = {
			{
				.name = "hypertable",
				.relid_column = "relid",
				.schema_column = "schema_name",
				.name_column = "table_name",
				.is_what = "divided into chunks by TimescaleDB"
			},
			/* a compressed chunk has a second table */
			{
				.name = "chunk",
				.relid_column = "relid",
				.schema_column = "schema_name",
				.name_column = "table_name",
				.status_column = "status",
				.is_what = "a compressed or frozen chunk of TimescaleDB"
			},
			{
				.name = "continuous_agg",
				.schema_column = "user_view_schema",
				.name_column = "user_view_name",
				.is_what = "a continuous aggregate of TimescaleDB"
			}
		},
		.database_catalogs = {"hypertable"},
		.in_session = true,
		.ends_vacuums = true,
		.are_what = "divided into chunks by TimescaleDB",
		.inplace_hint = gettext_noop("Name other tables, or chunks that are neither compressed nor frozen."),
		.target_hint = gettext_noop("Leave out FULL, or name other tables, or chunks that are neither compressed nor frozen."),
	},
};

static const OtherLibrary *find_cluster(void);
static bool is_present(const OtherLibrary *library);
static bool find_owner(List *rels, Owner *owner);
static List *named_relations(List *rels);
static bool has_any(const OtherLibrary *library);
static bool find_one(const OtherLibrary *library, List *relids, Owner *owner);
static Relation open_catalog(const OtherLibrary *library, const char *name);
static bool find_in_catalog(Relation rel, const OtherCatalog *catalog, List *relids,
							Owner *owner);
static AttrNumber find_column(Relation rel, const char *name, Oid type);
static Oid	read_relid(HeapTuple tuple, TupleDesc desc, AttrNumber relid_column,
					   AttrNumber schema_column, AttrNumber name_column);
static void refuse(const char *options, const Owner *owner, const char *hint);

/* distributed_is_for_other -- see distributed.h. */
bool
distributed_is_for_other(List *rels, const VacuumOptions *options)
{
	const char *what = options->is_repack ? "REPACK" : "VACUUM (FULL)";
	bits32		flags = options->params.options;
	bool		is_lazy = (flags & (VACOPT_FULL | VACOPT_INPLACE)) == 0;
	Owner		owner;

	Assert(IsTransactionState());

	if (!find_owner(rels, &owner))
		return false;
	if (flags & VACOPT_INPLACE)
		refuse("VACUUM option FULL INPLACE", &owner, owner.library->inplace_hint);
	if (options->has_latency_target && (!is_lazy || !owner.library->in_session))
		refuse(is_lazy ? "VACUUM option LATENCY_TARGET" : "VACUUM options FULL and LATENCY_TARGET",
			   &owner, owner.library->target_hint);
	if (options->is_repack && options->params.nworkers != 0)
		refuse("REPACK option PARALLEL", &owner, gettext_noop("Leave out PARALLEL."));
	if (!is_lazy && options->params.nworkers > 0)
		refuse("VACUUM options FULL and PARALLEL", &owner, gettext_noop("Leave out PARALLEL."));
	if (!is_lazy)
		ereport((flags & VACOPT_VERBOSE) ? INFO : DEBUG1,
				OidIsValid(owner.relid) ?
				errmsg("leaving %s to the next library, as \"%s\" is %s",
					   what, get_rel_name(owner.relid), owner.is_what) :
				errmsg("leaving %s to the next library, as the database has tables %s",
					   what, owner.is_what));
	return true;
}

/* distributed_is_for_cluster -- see distributed.h. */
bool
distributed_is_for_cluster(List *rels, const VacuumOptions *options, List **here)
{
	bits32		flags = options->params.options;
	bool		is_ours = (flags & VACOPT_INPLACE) || options->has_latency_target ||
		((flags & VACOPT_FULL) && options->params.nworkers > 0);
	const OtherLibrary *library;

	Assert(IsTransactionState());

	*here = NIL;
	if (!is_ours || options->is_repack || rels == NIL ||
		(library = find_cluster()) == NULL)
		return false;
	foreach_node(VacuumRelation, named, rels)
	{
		List	   *relids = named_relations(list_make1(named));
		Owner		owner;

		if (relids != NIL && !find_one(library, relids, &owner))
			*here = lappend(*here, named);
	}
	return list_length(*here) < list_length(rels);
}

/* distributed_has_cluster -- see distributed.h. */
bool
distributed_has_cluster(void)
{
	Assert(IsTransactionState());
	return find_cluster() != NULL;
}

/* distributed_is_in_cluster -- see distributed.h. */
bool
distributed_is_in_cluster(Oid relid)
{
	const OtherLibrary *library = find_cluster();
	Owner		owner;

	Assert(IsTransactionState());
	return library != NULL && OidIsValid(relid) &&
		find_one(library, list_make1_oid(relid), &owner);
}

/* find_cluster -- the library that can run our commands on other nodes, or NULL. */
static const OtherLibrary *
find_cluster(void)
{
	for (int i = 0; i < lengthof(libraries); i++)
	{
		if (libraries[i].can_run != NULL && is_present(&libraries[i]) && libraries[i].can_run())
			return &libraries[i];
	}
	return NULL;
}

/* distributed_table_is_for_other -- see distributed.h. */
bool
distributed_table_is_for_other(Oid relid, const char **is_what)
{
	Assert(IsTransactionState());
	Assert(OidIsValid(relid));
	Assert(CheckRelationOidLockedByMe(relid, AccessShareLock, true));

	for (int i = 0; i < lengthof(libraries); i++)
	{
		Owner		owner;

		if (is_present(&libraries[i]) &&
			find_one(&libraries[i], list_make1_oid(relid), &owner))
		{
			*is_what = owner.is_what;
			return true;
		}
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
		if (libraries[i].ends_vacuums && is_present(&libraries[i]))
			return true;
	}
	return false;
}

/* is_present -- has this database the extension, and is it not switched off? */
static bool
is_present(const OtherLibrary *library)
{
	const char *value;

	Assert(IsTransactionState());
	if (!OidIsValid(get_extension_oid(library->extension, true)))
		return false;
	if (library->off_switch == NULL)
		return true;
	value = GetConfigOption(library->off_switch, true, false);
	return value == NULL || strcmp(value, "off") != 0;
}

/* find_owner -- is a VACUUM another library's?  If so, *owner says which and why. */
static bool
find_owner(List *rels, Owner *owner)
{
	List	   *relids = NIL;

	for (int i = 0; i < lengthof(libraries); i++)
	{
		if (!is_present(&libraries[i]))
			continue;
		if (rels == NIL)
		{
			*owner = (Owner)
			{
				&libraries[i], InvalidOid, libraries[i].are_what
			};
			if (has_any(&libraries[i]))
				return true;
			continue;
		}
		if (relids == NIL)
			relids = named_relations(rels);
		if (relids != NIL && find_one(&libraries[i], relids, owner))
			return true;
	}
	return false;
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

/* has_any -- is a VACUUM without tables the library's? */
static bool
has_any(const OtherLibrary *library)
{
	bool		found = false;

	for (int i = 0; i < lengthof(library->database_catalogs) && !found; i++)
	{
		Relation	rel;
		SysScanDesc scan;

		if (library->database_catalogs[i] == NULL)
			break;
		rel = open_catalog(library, library->database_catalogs[i]);
		if (rel == NULL)
			return true;
		scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
		found = HeapTupleIsValid(systable_getnext(scan));
		systable_endscan(scan);
		table_close(rel, AccessShareLock);
	}
	return found;
}

/*
 * find_one
 *		Is one of these relations the library's?  If so, *owner says which.
 *
 * If a catalog is missing, or we don't know how to read it, the first relation counts as
 * the library's.
 */
static bool
find_one(const OtherLibrary *library, List *relids, Owner *owner)
{
	bool		found = false;

	Assert(relids != NIL);

	*owner = (Owner)
	{
		library, linitial_oid(relids), library->are_what
	};
	for (int i = 0; i < lengthof(library->catalogs) && !found; i++)
	{
		const OtherCatalog *catalog = &library->catalogs[i];
		Relation	rel;

		if (catalog->name == NULL)
			break;
		rel = open_catalog(library, catalog->name);
		if (rel == NULL)
			return true;
		found = find_in_catalog(rel, catalog, relids, owner);
		table_close(rel, AccessShareLock);
	}
	return found;
}

/* open_catalog -- returns a library's catalog, locked, or NULL if there is none. */
static Relation
open_catalog(const OtherLibrary *library, const char *name)
{
	Oid			schema = get_namespace_oid(library->schema, true);
	Oid			relid = OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;

	/* it may have been dropped meanwhile, or be a view in some version */
	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_RELATION)
		return NULL;
	return try_table_open(relid, AccessShareLock);
}

/*
 * find_in_catalog
 *		Is one of these relations in a catalog?  Yes, too, if we can't read the catalog.
 *
 * If the relation is found, *owner says which it is; if the catalog can't be read, *owner
 * stays as it was.
 *
 * The scan takes a new snapshot, as the table isn't a system catalog: it sees all that
 * was committed before the call.
 */
static bool
find_in_catalog(Relation rel, const OtherCatalog *catalog, List *relids, Owner *owner)
{
	AttrNumber	relid_column = find_column(rel, catalog->relid_column, REGCLASSOID);
	AttrNumber	schema_column = find_column(rel, catalog->schema_column, NAMEOID);
	AttrNumber	name_column = find_column(rel, catalog->name_column, NAMEOID);
	AttrNumber	status_column = find_column(rel, catalog->status_column, INT4OID);
	bool		found = false;
	SysScanDesc scan;
	HeapTuple	tuple;

	Assert(relids != NIL);
	if (relid_column == InvalidAttrNumber &&
		(schema_column == InvalidAttrNumber || name_column == InvalidAttrNumber))
		return true;

	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
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

/*
 * read_relid
 *		Returns the relation that a row of a catalog is about.
 *
 * InvalidOid if there is none.
 */
static Oid
read_relid(HeapTuple tuple, TupleDesc desc, AttrNumber relid_column,
		   AttrNumber schema_column, AttrNumber name_column)
{
	Datum		value;
	bool		isnull;
	Oid			schema;

	Assert(relid_column != InvalidAttrNumber ||
		   (schema_column != InvalidAttrNumber && name_column != InvalidAttrNumber));
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

/* refuse -- raise the error for options that the other library doesn't have. */
static void
refuse(const char *options, const Owner *owner, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 OidIsValid(owner->relid) ?
			 errmsg("%s cannot be used for \"%s\", which is %s",
					options, get_rel_name(owner->relid), owner->is_what) :
			 errmsg("%s cannot be used for the whole database, which has tables %s",
					options, owner->is_what),
			 errhint("%s", _(hint))));
}
