/*-------------------------------------------------------------------------
 *
 * relations.c
 *	  Which relations a VACUUM FULL processes, and each one's transactions.
 *
 * Does what the server's vacuum() does for the VACUUM command, for FULL,
 * REWRITE or INPLACE, and like it in two steps.  First it makes the list of targets, in
 * the transaction of the statement: the named tables with their partitions and children,
 * or all tables of the database.  No lock outlives this step.  Then it commits that
 * transaction, and each target gets its own.  There it opens the target under
 * AccessExclusiveLock, or ShareUpdateExclusiveLock for INPLACE, checks it once more, and
 * rewrites or compacts it.  It leaves to the server a target for which that isn't
 * possible, and the TOAST table of a compacted one, under a session lock on the table;
 * the server's lazy VACUUMs come to the engine (heap_seam.c).  ANALYZE follows if the
 * statement has it.  At the end a new transaction is open for the caller to commit.
 *
 * Memory that must survive the transactions is in the caller's memory context.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "audit_mark.h"
#include "autovacuum/autovacuum.h"
#include "autovacuum/table_log.h"
#include "command/distributed.h"
#include "command/options.h"
#include "command/relations.h"
#include "compat.h"
#include "engine/table_vacuum.h"
#include "history/history.h"
#include "inplace/table_inplace.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "rewrite/table_rewrite.h"
#include "scope.h"
#include "team/team.h"
#include "transaction.h"

/* What to do with a target that could be opened. */
typedef enum TargetVerdict
{
	TARGET_SKIP,				/* nothing, not even ANALYZE */
	TARGET_EMPTY,				/* nothing but ANALYZE */
	TARGET_FOR_SERVER,			/* not for our VACUUM FULL */
	TARGET_FOR_US
} TargetVerdict;

/* Are we between the first and the last target? */
static bool running = false;

/* The tables that the server's VACUUM in hand has come to, if it is one that can go on */
static List *tables_met = NIL;
static bool noting = false;

static List *expand_named(List *targets, VacuumRelation *named,
						  bits32 options, MemoryContext context);
static bool wants_children(const RangeVar *name, char relkind);
static List *append_children(List *targets, Oid relid, List *columns,
							 MemoryContext context);
static bool is_to_be_vacuumed(Form_pg_class form, bits32 options);
static int	process_targets(List *targets, const VacuumParams *params,
							BufferAccessStrategy ring, MemoryContext context,
							bool is_only_target);
static void process_target(VacuumRelation *target, const VacuumParams *params,
						   BufferAccessStrategy ring, MemoryContext context);
static bool is_failed_audit(void);
static ErrorData *end_failed_target(MemoryContext context);
static void warn_of(ErrorData *error);
static bool vacuum_target(VacuumRelation *target, const VacuumParams *params,
						  BufferAccessStrategy ring, MemoryContext context);
static bool is_surely_for_server(Oid relid, const VacuumParams *params);
static TargetVerdict judge_target(Relation rel, const VacuumParams *params,
								  bool is_named);
static bool can_compact(Relation rel, bool is_named, bits32 options);
static VacOptValue index_cleanup_default(const StdRdOptions *opts);
static void vacuum_toast(Oid relid, Oid parent, const VacuumParams *params,
						 BufferAccessStrategy ring, MemoryContext context);
static void leave_to_server(VacuumRelation *target, const VacuumParams *params,
							BufferAccessStrategy ring, MemoryContext context);
static void analyze_target(const VacuumRelation *target,
						   const VacuumParams *params,
						   BufferAccessStrategy ring);

/* relations_vacuum -- see relations.h. */
void
relations_vacuum(List *named, const VacuumParams *params,
				 BufferAccessStrategy ring, MemoryContext context,
				 int naudits_failed_before)
{
	const bool	deferrable = DefaultXactDeferrable;
	List	   *targets;
	volatile int naudits_failed = naudits_failed_before;

	Assert((params->options & VACOPT_VACUUM) != 0);
	Assert((params->options & VACOPT_ONLY_DATABASE_STATS) == 0);
	Assert(IsTransactionState() && !running);
	Assert(GetCurrentTransactionNestLevel() == 1 && !IsInParallelMode());

	targets = relations_list(named, params->options, context);

	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();

	PG_TRY();
	{
		running = true;

		/*
		 * a transaction's first snapshot would wait for others, which may
		 * wait for the session's lock, and the server doesn't see such a
		 * deadlock
		 */
		DefaultXactDeferrable = false;
		naudits_failed += process_targets(targets, params, ring, context,
										  naudits_failed == 0 && list_length(targets) == 1);
	}
	PG_FINALLY();
	{
		DefaultXactDeferrable = deferrable;
		history_fail();
		running = false;
		relations_end();
	}
	PG_END_TRY();

	StartTransactionCommand();

	if (!(params->options & VACOPT_SKIP_DATABASE_STATS))
		vac_update_datfrozenxid();
	if (naudits_failed > 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg_plural("an audit has failed on %d table",
							   "audits have failed on %d tables", naudits_failed, naudits_failed),
				 errdetail("The other tables have been vacuumed."),
				 errhint("The warnings before this message say more.")));
}

/* relations_note_tables -- see relations.h. */
void
relations_note_tables(bool on)
{
	tables_met = NIL;
	noting = on;
	/* an earlier statement's audit may have failed */
	if (on)
		audit_mark_forget();
}

/* relations_note_table -- see relations.h. */
void
relations_note_table(Oid relid)
{
	MemoryContext old;

	if (!noting)
		return;
	old = MemoryContextSwitchTo(PortalContext);
	tables_met = lappend_oid(tables_met, relid);
	MemoryContextSwitchTo(old);
}

/* relations_can_go_on -- see relations.h. */
bool
relations_can_go_on(void)
{
	return noting && is_failed_audit();
}

/* relations_go_on -- see relations.h. */
void
relations_go_on(List *named, const VacuumOptions *options, BufferAccessStrategy ring)
{
	const VacuumParams *params = &options->params;
	ErrorData  *error = end_failed_target(PortalContext);
	List	   *met = tables_met;
	List	   *targets = NIL;
	List	   *left = NIL;

	relations_note_tables(false);
	StartTransactionCommand();
	PG_TRY();
	{
		/* another library has parts elsewhere, or divides tables itself */
		if (!distributed_is_for_other(named, options))
			targets = relations_list(named, params->options, PortalContext);
	}
	PG_CATCH();
	{
		/* say what the audit has found rather than that a table is gone */
		FlushErrorState();
		ReThrowError(error);
	}
	PG_END_TRY();
	foreach_node(VacuumRelation, target, targets)
	{
		if (!list_member_oid(met, target->oid))
			left = relations_append(left, target->relation, target->oid, target->va_cols,
									PortalContext);
	}
	if (left == NIL)
		ReThrowError(error);
	warn_of(error);
	relations_vacuum(left, params, ring, PortalContext, 1);
}

/* relations_list -- see relations.h. */
List *
relations_list(List *named, bits32 options, MemoryContext context)
{
	List	   *targets = NIL;

	Assert(IsTransactionState() && context != NULL);
	if (named == NIL)
		targets = relations_of_database(is_to_be_vacuumed, options, context);
	foreach_node(VacuumRelation, one, named)
		targets = expand_named(targets, one, options, context);
	return targets;
}

/* relations_are_vacuumed -- see relations.h. */
bool
relations_are_vacuumed(void)
{
	return running || pace_is_worker();
}

/*
 * expand_named
 *		Appends the targets that a named relation stands for.
 *
 * Holds an AccessShareLock on it meanwhile.  Raises an error if it doesn't exist.  With
 * SKIP_LOCKED, warns and appends nothing if it is locked.
 */
static List *
expand_named(List *targets, VacuumRelation *named, bits32 options,
			 MemoryContext context)
{
	RangeVar   *name = named->relation;
	Oid			relid = named->oid;
	HeapTuple	tuple;
	Form_pg_class form;
	bool		with_children;

	if (OidIsValid(relid))
		return relations_append(targets, name, relid, named->va_cols, context);

	relid = RangeVarGetRelidExtended(name, AccessShareLock,
									 (options & VACOPT_SKIP_LOCKED) ? RVR_SKIP_LOCKED : 0,
									 NULL, NULL);
	if (!OidIsValid(relid))
	{
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("skipping vacuum of \"%s\" --- lock not available",
						name->relname)));
		return targets;
	}

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	form = (Form_pg_class) GETSTRUCT(tuple);

	/* a user who may not vacuum a parent may own some of its children */
	if (vacuum_is_permitted_for_relation(relid, form, options))
		targets = relations_append(targets, name, relid, named->va_cols, context);
	with_children = wants_children(name, form->relkind);
	ReleaseSysCache(tuple);

	if (with_children)
		targets = append_children(targets, relid, named->va_cols, context);

	/* locks on many relations at once could lead to deadlocks */
	UnlockRelationOid(relid, AccessShareLock);

	return targets;
}

/*
 * wants_children
 *		Does naming this relation name its children or partitions, too?
 *
 * Warns if it doesn't, and the statement has nothing to do for the relation.
 */
static bool
wants_children(const RangeVar *name, char relkind)
{
	bool		is_partitioned = relkind == RELKIND_PARTITIONED_TABLE;

	if (!COMPAT_VACUUM_RECURSES_INHERITANCE)
		return is_partitioned;

	if (is_partitioned && !name->inh)
		ereport(WARNING,
				(errmsg("VACUUM ONLY of partitioned table \"%s\" has no effect",
						name->relname)));

	return name->inh;
}

/*
 * append_children
 *		Appends all children of a relation, on which the caller has some lock.
 *
 * They aren't locked, and get no name, so that there is no warning if one of them is gone
 * when its turn comes.
 */
static List *
append_children(List *targets, Oid relid, List *columns,
				MemoryContext context)
{
	List	   *family = find_all_inheritors(relid, NoLock, NULL);

	foreach_oid(member, family)
	{
		if (member != relid)
			targets = relations_append(targets, NULL, member, columns, context);
	}
	list_free(family);

	return targets;
}

/* relations_of_database -- see relations.h. */
List *
relations_of_database(bool (*is_wanted) (Form_pg_class form, bits32 options),
					  bits32 options, MemoryContext context)
{
	List	   *targets = NIL;
	Relation	pgclass = table_open(RelationRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(pgclass, 0, NULL);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (is_wanted(form, options))
			targets = relations_append(targets, NULL, form->oid, NIL, context);
	}

	table_endscan(scan);
	table_close(pgclass, AccessShareLock);

	return targets;
}

/*
 * is_to_be_vacuumed
 *		Does a VACUUM of the database vacuum a relation, or analyze it, if it is partitioned?
 *		Warns if the user may not.
 */
static bool
is_to_be_vacuumed(Form_pg_class form, bits32 options)
{
	return (form->relkind == RELKIND_RELATION || form->relkind == RELKIND_MATVIEW ||
			form->relkind == RELKIND_PARTITIONED_TABLE) &&
		vacuum_is_permitted_for_relation(form->oid, form, options);
}

/* relations_append -- see relations.h. */
List *
relations_append(List *targets, RangeVar *name, Oid relid, List *columns,
				 MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);

	Assert(OidIsValid(relid));
	targets = lappend(targets, makeVacuumRelation(name, relid, columns));
	MemoryContextSwitchTo(old);

	return targets;
}

/*
 * process_targets
 *		Vacuums one target after the other.  Returns on how many an audit has failed.
 *
 * Called and returns outside any transaction.  If an audit fails on one of several targets,
 * it warns, and goes on with the next one: what is wrong with one table is no reason to
 * leave others as they are.
 */
static int
process_targets(List *targets, const VacuumParams *params,
				BufferAccessStrategy ring, MemoryContext context, bool is_only_target)
{
	volatile int naudits_failed = 0;

	Assert(!IsTransactionState());

	relations_reset_costs();

	foreach_node(VacuumRelation, target, targets)
	{
		PG_TRY();
		{
			process_target(target, params, ring, context);
		}
		PG_CATCH();
		{
			if (is_only_target || !is_failed_audit())
				PG_RE_THROW();
			warn_of(end_failed_target(context));
			naudits_failed++;
		}
		PG_END_TRY();

		VacuumFailsafeActive = false;
	}
	return naudits_failed;
}

/* process_target -- vacuums one target, and analyzes it if the statement has ANALYZE. */
static void
process_target(VacuumRelation *target, const VacuumParams *params,
			   BufferAccessStrategy ring, MemoryContext context)
{
	audit_mark_forget();
	if (vacuum_target(target, params, ring, context) && (params->options & VACOPT_ANALYZE))
		analyze_target(target, params, ring);
}

/* is_failed_audit -- is the error in hand an audit's? */
static bool
is_failed_audit(void)
{
	return audit_mark_is_set() && geterrcode() == ERRCODE_DATA_CORRUPTED;
}

/*
 * end_failed_target
 *		An audit's error has ended a target: end the transaction, and be ready for the next
 *		target.  Returns the error, in context.
 */
static ErrorData *
end_failed_target(MemoryContext context)
{
	ErrorData  *error;

	history_fail();
	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	/* while the team's memory is there, which the pace points into */
	compat_unlock_pages();
	team_give_up();
	if (pace_command_is_running())
		pace_restart_command();
	/* which gives back the session's lock, too */
	AbortOutOfAnyTransaction();
	relations_end();
	relations_reset_costs();
	MemoryContextSwitchTo(context);
	return error;
}

/* warn_of -- make an error a warning, and free it. */
static void
warn_of(ErrorData *error)
{
	error->elevel = WARNING;
	ThrowErrorData(error);
	FreeErrorData(error);
}

/*
 * vacuum_target
 *		Rewrites or compacts one target, and its TOAST table with it.
 *
 * Called and returns outside any transaction.  Returns true if the caller has to do an
 * ANALYZE of the statement, and false if it is done or the target is skipped.
 */
static bool
vacuum_target(VacuumRelation *target, const VacuumParams *params,
			  BufferAccessStrategy ring, MemoryContext context)
{
	VacuumParams resolved = *params;
	Relation	rel;
	LockRelId	session_lock;
	Oid			toast_relid;
	bool		full = (params->options & VACOPT_FULL) != 0;
	LOCKMODE	lock = full ? AccessExclusiveLock : ShareUpdateExclusiveLock;
	TargetVerdict verdict = TARGET_SKIP;

	Assert(!IsTransactionState() && running);
	if (!(params->options & (VACOPT_FULL | VACOPT_INPLACE)))
	{
		leave_to_server(target, params, ring, context);
		return false;
	}
	transaction_begin(full);
	if (full && is_surely_for_server(target->oid, params))
	{
		transaction_end();
		leave_to_server(target, params, ring, context);
		return false;
	}

	rel = vacuum_open_relation(target->oid, target->relation, params->options,
							   compat_log_duration(params) >= 0, lock);
	if (rel)
		verdict = judge_target(rel, params, target->relation != NULL);

	if (verdict != TARGET_FOR_US)
	{
		if (rel)
			relation_close(rel, lock);
		transaction_end();

		if (verdict == TARGET_FOR_SERVER)
			leave_to_server(target, params, ring, context);
		return verdict == TARGET_EMPTY;
	}

	if (full)
	{
		relation_rewrite(rel, REPACK_COMMAND_VACUUMFULL, params);
		transaction_end();
		history_end();
		return true;
	}

	/* keeps the table in existence from one transaction to the next */
	session_lock = rel->rd_lockInfo.lockRelId;
	LockRelationIdForSession(&session_lock, lock);
	relations_apply_reloptions(rel, &resolved);
	toast_relid = rel->rd_rel->reltoastrelid;
	relation_close(rel, NoLock);
	transaction_end();

	table_inplace(target->oid, &resolved, ring, context);
	if ((params->options & VACOPT_PROCESS_TOAST) && OidIsValid(toast_relid))
		vacuum_toast(toast_relid, target->oid, params, ring, context);

	UnlockRelationIdForSession(&session_lock, lock);

	return true;
}

/*
 * is_surely_for_server
 *		Will VACUUM FULL of this relation be left to the server?
 *
 * This is asked before the exclusive lock is taken: that lock costs a transaction ID, and
 * other sessions wait twice if the server takes it again.  Returns false if it can't get
 * a weak lock at once.
 */
static bool
is_surely_for_server(Oid relid, const VacuumParams *params)
{
	Relation	rel;
	bool		for_server;

	Assert(IsTransactionState());
	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return false;
	rel = try_relation_open(relid, NoLock);
	for_server = rel != NULL && relation_is_for_server(rel, params);
	if (rel != NULL)
		relation_close(rel, NoLock);
	UnlockRelationOid(relid, AccessShareLock);
	return for_server;
}

/* relation_is_for_server -- see relations.h. */
bool
relation_is_for_server(Relation rel, const VacuumParams *params)
{
	char		relkind = rel->rd_rel->relkind;

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));

	if (relkind != RELKIND_RELATION &&
		relkind != RELKIND_MATVIEW &&
		relkind != RELKIND_TOASTVALUE)
		return false;
	if (rel->rd_tableam != GetHeapamTableAmRoutine() || !scope_has_table(rel))
		return true;
	if ((params->options & VACOPT_FULL) && table_log_has_alarm(rel))
	{
		ereport(WARNING,
				(errmsg("table \"%s\" is left to PostgreSQL, as an audit has failed on it",
						RelationGetRelationName(rel)),
				 errhint("The function cyclone.autovacuum_reset() ends that.")));
		return true;
	}
	/* without PROCESS_MAIN the statement is about the TOAST table */
	return (params->options & VACOPT_FULL) &&
		(!(params->options & VACOPT_PROCESS_MAIN) || !table_rewrite_is_possible(rel));
}

/*
 * judge_target
 *		Decides what to do with a target that is open and locked.
 *
 * Warns if the user lacks the privilege or it is no table at all.
 */
static TargetVerdict
judge_target(Relation rel, const VacuumParams *params, bool is_named)
{
	char		relkind = rel->rd_rel->relkind;
	const char *is_what;

	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	/* checked before, but things may have changed since */
	if (!vacuum_is_permitted_for_relation(RelationGetRelid(rel), rel->rd_rel,
										  params->options & ~VACOPT_ANALYZE))
		return TARGET_SKIP;

	if (relkind != RELKIND_RELATION &&
		relkind != RELKIND_MATVIEW &&
		relkind != RELKIND_TOASTVALUE &&
		relkind != RELKIND_PARTITIONED_TABLE)
	{
		ereport(WARNING,
				(errmsg("skipping \"%s\" --- cannot vacuum non-tables or special system tables",
						RelationGetRelationName(rel))));
		return TARGET_SKIP;
	}

	/* no warning, as each VACUUM of a database meets some */
	if (RELATION_IS_OTHER_TEMP(rel))
		return TARGET_SKIP;

	if (relkind == RELKIND_PARTITIONED_TABLE)
		return TARGET_EMPTY;

	/* checked before, too, but without a lock */
	if (distributed_table_is_for_other(RelationGetRelid(rel), &is_what))
	{
		ereport(WARNING,
				(errmsg("skipping \"%s\" --- it is now %s",
						RelationGetRelationName(rel), is_what)));
		return TARGET_SKIP;
	}

	if (((params->options & VACOPT_INPLACE) && !can_compact(rel, is_named, params->options)) ||
		relation_is_for_server(rel, params))
		return TARGET_FOR_SERVER;
	return TARGET_FOR_US;
}

/*
 * can_compact
 *		Can FULL INPLACE move the rows of a table?
 *
 * If not, the table is only vacuumed.  There is a warning if the statement names it, and
 * otherwise a line of VERBOSE.
 */
static bool
can_compact(Relation rel, bool is_named, bits32 options)
{
	const char *why_not;
	int			level = (options & VACOPT_VERBOSE) ? INFO : DEBUG1;

	Assert((options & VACOPT_INPLACE) != 0);
	if (table_log_has_alarm(rel))
		why_not = gettext_noop("It is left to PostgreSQL, as an audit has failed on it.");
	else if (!scope_has_table(rel))
		why_not = gettext_noop("It is left to PostgreSQL, by cyclone.databases or cyclone.tables.");
	else if (table_inplace_is_possible(rel, &why_not))
		return true;
	ereport(is_named ? WARNING : level,
			(errmsg("rows of \"%s\" cannot be moved, vacuuming only",
					RelationGetRelationName(rel)),
			 errdetail("%s", _(why_not))));
	return false;
}

/* relations_apply_reloptions -- see relations.h. */
void
relations_apply_reloptions(Relation rel, VacuumParams *params)
{
	const StdRdOptions *opts = (const StdRdOptions *) rel->rd_options;

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));

	if (params->index_cleanup == VACOPTVALUE_UNSPECIFIED)
		params->index_cleanup = index_cleanup_default(opts);

	compat_apply_eager_reloption(params, opts);

	if (params->truncate == VACOPTVALUE_UNSPECIFIED)
		params->truncate = compat_truncate_default(opts) ?
			VACOPTVALUE_ENABLED : VACOPTVALUE_DISABLED;
}

/*
 * index_cleanup_default
 *		Returns what a table's options say about INDEX_CLEANUP.
 */
static VacOptValue
index_cleanup_default(const StdRdOptions *opts)
{
	if (opts == NULL)
		return VACOPTVALUE_AUTO;

	switch (opts->vacuum_index_cleanup)
	{
		case STDRD_OPTION_VACUUM_INDEX_CLEANUP_ON:
			return VACOPTVALUE_ENABLED;
		case STDRD_OPTION_VACUUM_INDEX_CLEANUP_OFF:
			return VACOPTVALUE_DISABLED;
		case STDRD_OPTION_VACUUM_INDEX_CLEANUP_AUTO:
			break;
	}

	return VACOPTVALUE_AUTO;
}

/* relation_rewrite -- see relations.h. */
void
relation_rewrite(Relation rel, RepackCommand command, const VacuumParams *params)
{
	SavedUser	saved;
	TableKey	key = table_log_key(rel);
	char	   *name = pstrdup(RelationGetRelationName(rel));

	Assert(IsTransactionState() && GetCurrentTransactionNestLevel() == 1);
	Assert(ActiveSnapshotSet());
	Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, false));

	audit_mark_forget();
	become_owner(rel, &saved);
	pace_write_steadily();
	PG_TRY();
	{
		table_rewrite(rel, command, params);
	}
	PG_CATCH();
	{
		(void) autovacuum_audit_has_failed(&key, name);
		PG_RE_THROW();
	}
	PG_END_TRY();
	become_user_again(&saved);
}

/*
 * vacuum_toast
 *		Vacuums the TOAST table of a compacted table, under the session lock on the table.
 *
 * The TOAST table has reloptions of its own, so params are those of the statement.  An
 * INDEX_CLEANUP beside FULL INPLACE doesn't apply to it.
 */
static void
vacuum_toast(Oid relid, Oid parent, const VacuumParams *params,
			 BufferAccessStrategy ring, MemoryContext context)
{
	VacuumParams toast_params = *params;
	VacuumRelation target = {
		.type = T_VacuumRelation,
		.oid = relid
	};

	Assert(OidIsValid(relid) && OidIsValid(parent));
	toast_params.options &= ~VACOPT_ANALYZE;
	toast_params.toast_parent = parent;
	toast_params.index_cleanup = VACOPTVALUE_UNSPECIFIED;

	leave_to_server(&target, &toast_params, ring, context);
}

/*
 * leave_to_server
 *		Has the server vacuum a target that we don't rewrite or compact, and analyze it.
 *
 * Called and returns outside any transaction, without a lock on the target.
 */
static void
leave_to_server(VacuumRelation *target, const VacuumParams *params,
				BufferAccessStrategy ring, MemoryContext context)
{
	VacuumParams server_params = *params;
	MemoryContext scratch;
	MemoryContext old;
	List	   *targets;

	Assert(!IsTransactionState());

	/* relations_vacuum updates them, once for all targets */
	server_params.options |= VACOPT_SKIP_DATABASE_STATS;
	server_params.options &= ~VACOPT_INPLACE;

	StartTransactionCommand();
	elog(DEBUG1, "pg_cyclone leaves relation %u to the server's VACUUM",
		 target->oid);

	scratch = AllocSetContextCreate(context, "Vacuum by the server",
									ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(scratch);
	targets = list_make1(target);
	MemoryContextSwitchTo(old);

	vacuum(targets, &server_params, ring, scratch, true);

	CommitTransactionCommand();
	MemoryContextDelete(scratch);

	/* the server has switched cost accounting off at its end */
	relations_reset_costs();
}

/*
 * analyze_target
 *		Analyzes one target in a transaction of its own.
 */
static void
analyze_target(const VacuumRelation *target, const VacuumParams *params,
			   BufferAccessStrategy ring)
{
	VacuumParams analyze_params = *params;

	StartTransactionCommand();
	/* functions in indexes may need a snapshot */
	PushActiveSnapshot(GetTransactionSnapshot());

	analyze_rel(target->oid, target->relation, &analyze_params,
				target->va_cols, false, ring);

	PopActiveSnapshot();
	CommandCounterIncrement();
	CommitTransactionCommand();
}

/* relations_reset_costs -- see relations.h. */
void
relations_reset_costs(void)
{
	Assert(!IsInParallelMode());

	VacuumFailsafeActive = false;
	VacuumUpdateCosts();
	VacuumCostBalance = 0;
	VacuumCostBalanceLocal = 0;
	VacuumSharedCostBalance = NULL;
	VacuumActiveNWorkers = NULL;
	compat_reset_page_counters();
}

/* relations_end -- see relations.h. */
void
relations_end(void)
{
	VacuumCostActive = false;
	VacuumFailsafeActive = false;
	VacuumCostBalance = 0;
	VacuumSharedCostBalance = NULL;
	VacuumActiveNWorkers = NULL;
	progress_clear();
	progress_bytes_freed(0);
}
