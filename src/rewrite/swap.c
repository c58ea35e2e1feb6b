/*-------------------------------------------------------------------------
 *
 * swap.c
 *	  Giving a table the files of its rewritten copy.
 *
 * The server's finish_heap_swap does that, rebuilds the indexes one after the
 * other, and drops the copy.  Here are the first and the last of the three.
 * index_builds.c does the second, or server_build.c in a subtransaction.  The catalogs
 * become the same.  Much is simpler than in the server, as the tables that come here
 * are alike in more respects: no catalogs, nothing mapped, the same access method and
 * persistence, and both with a TOAST table or both without.
 *
 * A TOAST table keeps its identity and gets the files of the new one, as does
 * its index.  So the pointers in the rows, which name it, stay right.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/toast_internals.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/heap.h"
#include "catalog/indexing.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "rewrite/swap.h"

static void swap_pair(Relation pg_class, Oid relid, Oid new_relid,
					  TransactionId frozenxid, MultiXactId minmulti);
static HeapTuple class_tuple(Oid relid);
static void exchange_files(Oid *a, Oid *b);
static void exchange_relcache_marks(Oid relid, Oid new_relid);

/*
 * swap_files
 *		Exchange the files of a relation and its copy, and also those of their
 *		TOAST tables and the indexes of these.
 */
void
swap_files(Oid relid, Oid new_relid, TransactionId frozenxid, MultiXactId minmulti)
{
	Relation	pg_class = table_open(RelationRelationId, RowExclusiveLock);

	Assert(relid != new_relid);
	Assert(CheckRelationOidLockedByMe(relid, AccessExclusiveLock, true));
	Assert(CheckRelationOidLockedByMe(new_relid, AccessExclusiveLock, true));
	swap_pair(pg_class, relid, new_relid, frozenxid, minmulti);
	table_close(pg_class, RowExclusiveLock);
	CommandCounterIncrement();
}

/* swap_finish -- drop the copy, which has the old files now. */
void
swap_finish(Oid relid, Oid new_relid)
{
	ObjectAddress copy;
	Relation	rel;

	Assert(relid != new_relid);
	Assert(CheckRelationOidLockedByMe(relid, AccessExclusiveLock, true));
	Assert(CheckRelationOidLockedByMe(new_relid, AccessExclusiveLock, true));
	ObjectAddressSet(copy, RelationRelationId, new_relid);
	performDeletion(&copy, DROP_RESTRICT, PERFORM_DELETION_INTERNAL);

	/* each row has all its columns now */
	rel = table_open(relid, NoLock);
	RelationClearMissing(rel);
	table_close(rel, NoLock);
}

/*
 * swap_pair
 *		Exchange the files of two relations, and what belongs to these.
 *
 * The sizes in the new relation's row in pg_class are left wrong, as it will be
 * dropped.
 */
static void
swap_pair(Relation pg_class, Oid relid, Oid new_relid,
		  TransactionId frozenxid, MultiXactId minmulti)
{
	HeapTuple	tuple = class_tuple(relid);
	HeapTuple	new_tuple = class_tuple(new_relid);
	Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);
	Form_pg_class new_form = (Form_pg_class) GETSTRUCT(new_tuple);
	Oid			toast = form->reltoastrelid;
	Oid			new_toast = new_form->reltoastrelid;
	char		relkind = form->relkind;

	if (!OidIsValid(form->relfilenode) || !OidIsValid(new_form->relfilenode) ||
		form->relam != new_form->relam ||
		form->relpersistence != new_form->relpersistence ||
		OidIsValid(toast) != OidIsValid(new_toast))
		elog(ERROR, "relations %u and %u are not alike enough to swap their files",
			 relid, new_relid);

	exchange_files(&form->relfilenode, &new_form->relfilenode);
	exchange_files(&form->reltablespace, &new_form->reltablespace);
	form->relpages = new_form->relpages;
	form->reltuples = new_form->reltuples;
	form->relallvisible = new_form->relallvisible;
	compat_copy_relallfrozen(form, new_form);
	if (relkind != RELKIND_INDEX)
	{
		form->relfrozenxid = frozenxid;
		form->relminmxid = minmulti;
	}

	exchange_relcache_marks(relid, new_relid);
	CatalogTupleUpdate(pg_class, &tuple->t_self, tuple);
	CatalogTupleUpdate(pg_class, &new_tuple->t_self, new_tuple);
	heap_freetuple(tuple);
	heap_freetuple(new_tuple);

	InvokeObjectPostAlterHookArg(RelationRelationId, relid, 0, InvalidOid, true);
	InvokeObjectPostAlterHookArg(RelationRelationId, new_relid, 0, InvalidOid, true);

	if (OidIsValid(toast))
		swap_pair(pg_class, toast, new_toast, frozenxid, minmulti);
	if (relkind == RELKIND_TOASTVALUE)
		swap_pair(pg_class,
				  toast_get_valid_index(relid, AccessExclusiveLock),
				  toast_get_valid_index(new_relid, AccessExclusiveLock),
				  InvalidTransactionId, InvalidMultiXactId);
}

/* class_tuple -- a copy of a relation's row in pg_class. */
static HeapTuple
class_tuple(Oid relid)
{
	HeapTuple	tuple = SearchSysCacheCopy1(RELOID, ObjectIdGetDatum(relid));

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	return tuple;
}

/* exchange_files -- two variables exchange their values. */
static void
exchange_files(Oid *a, Oid *b)
{
	Oid			old = *a;

	*a = *b;
	*b = old;
}

/*
 * exchange_relcache_marks
 *		Note which relation's files are new in this transaction.
 *
 * With wal_level = minimal the server needs no WAL for those.  The end of the
 * transaction goes by the marks, too, in the relcache.
 */
static void
exchange_relcache_marks(Oid relid, Oid new_relid)
{
	Relation	rel = relation_open(relid, NoLock);
	Relation	new_rel = relation_open(new_relid, NoLock);

	new_rel->rd_createSubid = rel->rd_createSubid;
	new_rel->rd_newRelfilelocatorSubid = rel->rd_newRelfilelocatorSubid;
	new_rel->rd_firstRelfilelocatorSubid = rel->rd_firstRelfilelocatorSubid;
	RelationAssumeNewRelfilelocator(rel);

	relation_close(new_rel, NoLock);
	relation_close(rel, NoLock);
}
