/*-------------------------------------------------------------------------
 *
 * horizon.c
 *	  What keeps VACUUM from removing dead rows: sessions, slots and standbys that
 *	  may still see them.
 *
 * A holder is a process in a transaction, a prepared transaction, a
 * replication slot, or a standby that tells what its queries need.  The rules
 * are those by which the server finds the oldest transaction ID that matters:
 * what a process has as xid or xmin counts for the tables of its database and
 * for shared ones, that of a standby and a slot's xmin for all tables, a
 * slot's catalog_xmin for catalogs; VACUUMs and logical decoding don't count,
 * nor do parallel workers on their own, as they end with their leader.
 *
 * The server has no view of this: pg_stat_activity doesn't tell which processes
 * don't count.  So processes are looked at here, under ProcArrayLock in shared
 * mode and for no longer than the server itself does for each snapshot.
 *
 * The server doesn't tell which transaction holds back the oldest multixact, only
 * that there is one.  It may be any that is in progress.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/pg_type_d.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "replication/slot.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "horizon/horizon.h"
#include "library.h"

/* Both may change meanwhile: a process sets them without the lock. */
#define READ_ONCE(xid)	(*(const volatile TransactionId *) &(xid))

/* What is copied of a process while ProcArrayLock is held */
typedef struct ProcessCopy
{
	bool		is_there;
	bool		in_transaction;
	bool		is_follower;	/* a parallel worker */
	uint8		flags;
	Oid			database;
	TransactionId xmin;			/* or its xid, if that is older_xid */
} ProcessCopy;

static HorizonScope scope_of(Relation rel);
static void copy_processes(ProcessCopy *copies, int ncopies);
static List *add_processes(List *holders, Oid viewer, bool multixact_is_held);
static HorizonHolder *process_holder(const PgBackendStatus *status,
									 const ProcessCopy *process, Oid viewer);
static List *add_prepared(List *holders, bool multixact_is_held);
static char *make_printable(char *text);
static List *add_slots(List *holders, Oid viewer);
static void note_slot_user(HorizonHolder *holder, Oid viewer);
static const char *session_state_name(BackendState state);
static int	compare_holders(const ListCell *a, const ListCell *b);
static TransactionId older_xid(TransactionId a, TransactionId b);
static char *describe_holder(const HorizonHolder *holder);
static void append_holder_fact(StringInfo facts, const char *what, const char *value);

/* horizon_holders -- all holders, the oldest first. */
List *
horizon_holders(Oid viewer)
{
	bool		multixact_is_held = !RecoveryInProgress() &&
		MultiXactIdPrecedes(GetOldestMultiXactId(), ReadNextMultiXactId());
	List	   *holders;

	Assert(IsTransactionState());
	holders = add_processes(NIL, viewer, multixact_is_held);
	if (max_prepared_xacts > 0)
		holders = add_prepared(holders, multixact_is_held);
	holders = add_slots(holders, viewer);
	list_sort(holders, compare_holders);
	return holders;
}

/* horizon_of -- what a holder keeps of tables of this kind, in that database. */
TransactionId
horizon_of(const HorizonHolder *holder, HorizonScope scope, Oid database)
{
	TransactionId xid = InvalidTransactionId;

	Assert((unsigned) scope <= SCOPE_SHARED);
	if (scope == SCOPE_OWN)
		return InvalidTransactionId;
	if (scope == SCOPE_SHARED || holder->everywhere || holder->database == database)
		xid = holder->xmin;
	/* a slot for logical decoding holds the catalogs of all databases */
	if (scope != SCOPE_DATABASE)
		xid = older_xid(xid, holder->catalog_xmin);
	return xid;
}

/* horizon_describe_oldest -- who keeps the rows of a table from being removed, in words. */
char *
horizon_describe_oldest(Relation rel, TransactionId cutoff)
{
	HorizonScope scope = scope_of(rel);
	TransactionId oldest = InvalidTransactionId;
	const HorizonHolder *who = NULL;

	Assert(IsTransactionState() && rel != NULL);
	Assert(TransactionIdIsValid(cutoff));
	foreach_ptr(HorizonHolder, holder, horizon_holders(GetOuterUserId()))
	{
		TransactionId xid = horizon_of(holder, scope, MyDatabaseId);

		if (!TransactionIdIsValid(xid) || holder->pid == MyProcPid ||
			(TransactionIdIsValid(oldest) && !TransactionIdPrecedes(xid, oldest)))
			continue;
		oldest = xid;
		who = holder;
	}
	if (who == NULL || TransactionIdFollows(oldest, cutoff))
		return NULL;
	return describe_holder(who);
}

/* horizon_line -- who does so, as a line of a report. */
char *
horizon_line(Relation rel, TransactionId cutoff)
{
	char	   *holder = horizon_describe_oldest(rel, cutoff);

	Assert(TransactionIdIsValid(cutoff));

	if (holder == NULL)
		return pstrdup(_("horizon: the removal of dead rows is not held back any more"));
	return psprintf(_("horizon: the removal of dead rows is held back by %s"), holder);
}

/* scope_of -- whose needs matter to this table? */
static HorizonScope
scope_of(Relation rel)
{
	Assert(RelationIsValid(rel));
	if (rel->rd_rel->relisshared || RecoveryInProgress())
		return SCOPE_SHARED;
	if (IsCatalogRelation(rel) || RelationIsAccessibleInLogicalDecoding(rel))
		return SCOPE_CATALOG;
	return RELATION_IS_LOCAL(rel) ? SCOPE_OWN : SCOPE_DATABASE;
}

/*
 * copy_processes
 *		Copy what matters of each process that pgstat has an entry of.
 *
 * An entry may be older_xid than the process that has its place now.
 */
static void
copy_processes(ProcessCopy *copies, int ncopies)
{
	Assert(ncopies >= 0 && !LWLockHeldByMe(ProcArrayLock));
	LWLockAcquire(ProcArrayLock, LW_SHARED);
	for (int i = 0; i < ncopies; i++)
	{
		const LocalPgBackendStatus *local = pgstat_get_local_beentry_by_index(i + 1);
		ProcessCopy *copy = &copies[i];
		PGPROC	   *proc = GetPGProcByNumber(local->proc_number);
		PGPROC	   *leader = proc->lockGroupLeader;

		copy->is_there = proc->pid == local->backendStatus.st_procpid;
		if (!copy->is_there)
			continue;
		copy->in_transaction = LocalTransactionIdIsValid(proc->vxid.lxid);
		copy->is_follower = leader != NULL && leader != proc;
		copy->flags = proc->statusFlags;
		copy->database = proc->databaseId;
		copy->xmin = older_xid(READ_ONCE(proc->xmin), READ_ONCE(proc->xid));
	}
	LWLockRelease(ProcArrayLock);
}

/* add_processes -- the processes that hold anything. */
static List *
add_processes(List *holders, Oid viewer, bool multixact_is_held)
{
	int			ncopies = pgstat_fetch_stat_numbackends();
	ProcessCopy *copies = palloc0_array(ProcessCopy, Max(ncopies, 1));

	copy_processes(copies, ncopies);
	for (int i = 0; i < ncopies; i++)
	{
		const PgBackendStatus *status = &pgstat_get_local_beentry_by_index(i + 1)->backendStatus;
		ProcessCopy *process = &copies[i];
		bool		may_hold_multixact = multixact_is_held && process->in_transaction;
		HorizonHolder *holder;

		if (!process->is_there || process->is_follower)
			continue;
		if (status->st_procpid == MyProcPid && !IsTransactionBlock())
			continue;
		if (process->flags & (PROC_IN_VACUUM | PROC_IN_LOGICAL_DECODING))
			process->xmin = InvalidTransactionId;
		if (!TransactionIdIsValid(process->xmin) && !may_hold_multixact)
			continue;
		holder = process_holder(status, process, viewer);
		holder->may_hold_multixact = may_hold_multixact;
		holders = lappend(holders, holder);
	}
	pfree(copies);
	return holders;
}

/* process_holder -- a process, as the viewer may see it. */
static HorizonHolder *
process_holder(const PgBackendStatus *status, const ProcessCopy *process, Oid viewer)
{
	HorizonHolder *holder = palloc0_object(HorizonHolder);
	bool		is_standby = (process->flags & PROC_AFFECTS_ALL_HORIZONS) != 0;

	Assert(process->is_there && !process->is_follower);
	Assert(status->st_procpid > 0);
	holder->kind = is_standby ? HOLDER_STANDBY : HOLDER_SESSION;
	holder->pid = status->st_procpid;
	holder->database = process->database;
	/* a standby can't tell databases apart */
	holder->everywhere = is_standby || RecoveryInProgress();
	holder->xmin = process->xmin;
	holder->user = status->st_userid;
	if (status->st_appname != NULL && status->st_appname[0] != '\0')
		holder->application = pstrdup(status->st_appname);
	if (!library_may_see(viewer, status->st_userid))
		return holder;

	holder->backend_type = GetBackendTypeDesc(status->st_backendType);
	holder->state = session_state_name(status->st_state);
	if (status->st_activity_raw != NULL && status->st_activity_raw[0] != '\0')
		holder->query = make_printable(pgstat_clip_activity(status->st_activity_raw));
	/* the time of a WAL sender's transactions isn't kept up to date */
	holder->since = status->st_backendType == B_WAL_SENDER ?
		status->st_proc_start_timestamp : status->st_xact_start_timestamp;
	return holder;
}

/*
 * add_prepared
 *		The prepared transactions, which everybody may see.
 *
 * Only a function of the server has the list of them, for one row a call.  It is called
 * without a query around it: an autovacuum, whose report may want to know, is no place
 * for what other libraries do with queries.
 */
static List *
add_prepared(List *holders, bool multixact_is_held)
{
	LOCAL_FCINFO(fcinfo, 0);
	FmgrInfo	function;
	ReturnSetInfo set = {
		.type = T_ReturnSetInfo,
		.econtext = CreateStandaloneExprContext(),
		.allowedModes = SFRM_ValuePerCall,
		.returnMode = SFRM_ValuePerCall
	};

	fmgr_info(F_PG_PREPARED_XACT, &function);
	InitFunctionCallInfoData(*fcinfo, &function, 0, InvalidOid, NULL, (Node *) &set);
	for (;;)
	{
		Datum		result = FunctionCallInvoke(fcinfo);
		HeapTupleHeader row;
		HorizonHolder *holder;
		bool		isnull;

		if (set.isDone != ExprMultipleResult)
			break;
		row = DatumGetHeapTupleHeader(result);
		holder = palloc0_object(HorizonHolder);
		holder->kind = HOLDER_PREPARED;
		holder->xmin = DatumGetTransactionId(GetAttributeByNum(row, 1, &isnull));
		holder->name = make_printable(TextDatumGetCString(GetAttributeByNum(row, 2, &isnull)));
		holder->since = DatumGetTimestampTz(GetAttributeByNum(row, 3, &isnull));
		holder->user = DatumGetObjectId(GetAttributeByNum(row, 4, &isnull));
		holder->database = DatumGetObjectId(GetAttributeByNum(row, 5, &isnull));
		holder->everywhere = RecoveryInProgress();
		holder->may_hold_multixact = multixact_is_held;
		holders = lappend(holders, holder);
	}
	FreeExprContext(set.econtext, true);
	return holders;
}

/*
 * make_printable
 *		Put question marks into a text that is none in this database's encoding, as
 *		it comes from another one.
 */
static char *
make_printable(char *text)
{
	if (!pg_verifymbstr(text, strlen(text), true))
		for (char *c = text; *c != '\0'; c++)
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
	return text;
}

/*
 * add_slots
 *		The replication slots that hold anything, which everybody may see.
 *
 * It is the effective values that count: of a slot for logical decoding, those
 * that are on disk.
 */
static List *
add_slots(List *holders, Oid viewer)
{
	HorizonHolder *first;
	int			nplaces = compat_number_of_slots();
	int			nslots = 0;

	if (nplaces <= 0)
		return holders;

	/* no memory is asked for while the lock is held */
	first = palloc0_array(HorizonHolder, nplaces);
	for (int i = 0; i < nplaces; i++)
		first[i].name = palloc0(NAMEDATALEN);

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < nplaces; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		HorizonHolder *holder = &first[nslots];
		bool		is_invalid;

		if (!slot->in_use)
			continue;
		SpinLockAcquire(&slot->mutex);
		holder->xmin = slot->effective_xmin;
		holder->catalog_xmin = slot->effective_catalog_xmin;
		holder->database = slot->data.database;
		holder->since = slot->inactive_since;
		is_invalid = slot->data.invalidated != RS_INVAL_NONE;
		holder->pid = compat_slot_pid(slot);
		SpinLockRelease(&slot->mutex);
		if (is_invalid || (!TransactionIdIsValid(holder->xmin) &&
						   !TransactionIdIsValid(holder->catalog_xmin)))
			continue;
		strlcpy(unconstify(char *, holder->name), NameStr(slot->data.name), NAMEDATALEN);
		nslots++;
	}
	LWLockRelease(ReplicationSlotControlLock);
	Assert(nslots <= nplaces);

	for (int i = 0; i < nslots; i++)
	{
		first[i].kind = HOLDER_SLOT;
		first[i].everywhere = true;
		first[i].logical = OidIsValid(first[i].database);
		if (first[i].pid != 0)
			note_slot_user(&first[i], viewer);
		holders = lappend(holders, &first[i]);
	}
	return holders;
}

/* note_slot_user -- the process that uses the slot, as far as the viewer may know. */
static void
note_slot_user(HorizonHolder *holder, Oid viewer)
{
	Assert(holder->kind == HOLDER_SLOT && holder->pid != 0);
	holder->since = 0;
	for (int i = 1; i <= pgstat_fetch_stat_numbackends(); i++)
	{
		const PgBackendStatus *status = &pgstat_get_local_beentry_by_index(i)->backendStatus;

		if (status->st_procpid != holder->pid)
			continue;
		holder->user = status->st_userid;
		if (status->st_appname != NULL && status->st_appname[0] != '\0')
			holder->application = pstrdup(status->st_appname);
		if (library_may_see(viewer, status->st_userid))
		{
			holder->backend_type = GetBackendTypeDesc(status->st_backendType);
			holder->since = status->st_proc_start_timestamp;
		}
	}
}

/* session_state_name -- as in pg_stat_activity. */
static const char *
session_state_name(BackendState state)
{
	switch (state)
	{
		case STATE_RUNNING:
			return "active";
		case STATE_IDLE:
			return "idle";
		case STATE_IDLEINTRANSACTION:
			return "idle in transaction";
		case STATE_IDLEINTRANSACTION_ABORTED:
			return "idle in transaction (aborted)";
		case STATE_FASTPATH:
			return "fastpath function call";
		default:
			return NULL;
	}
}

/* compare_holders -- the oldest first; of equals, the one that has been there longer. */
static int
compare_holders(const ListCell *a, const ListCell *b)
{
	const HorizonHolder *left = lfirst(a);
	const HorizonHolder *right = lfirst(b);
	TransactionId left_xid = older_xid(left->xmin, left->catalog_xmin);
	TransactionId right_xid = older_xid(right->xmin, right->catalog_xmin);

	if (left_xid != right_xid)
		return older_xid(left_xid, right_xid) == left_xid ? -1 : 1;
	if (left->since != right->since)
		return left->since < right->since ? -1 : 1;
	return 0;
}

/* older_xid -- of two transaction IDs, or of one, if the other is invalid. */
static TransactionId
older_xid(TransactionId a, TransactionId b)
{
	if (!TransactionIdIsValid(a))
		return b;
	if (!TransactionIdIsValid(b))
		return a;
	return TransactionIdPrecedes(a, b) ? a : b;
}

/* describe_holder -- a holder, in words for a message. */
static char *
describe_holder(const HorizonHolder *holder)
{
	StringInfoData buf;
	StringInfoData facts;
	const char *since = holder->since != 0 ? timestamptz_to_str(holder->since) : NULL;
	bool		is_unused = holder->kind == HOLDER_SLOT && holder->pid == 0;

	initStringInfo(&buf);
	switch (holder->kind)
	{
		case HOLDER_SESSION:
			appendStringInfo(&buf, "session %d", holder->pid);
			break;
		case HOLDER_PREPARED:
			appendStringInfo(&buf, "prepared transaction \"%s\"", holder->name);
			break;
		case HOLDER_SLOT:
			appendStringInfo(&buf, "replication slot \"%s\"", holder->name);
			break;
		case HOLDER_STANDBY:
			appendStringInfo(&buf, "a standby, fed by process %d", holder->pid);
			break;
	}

	initStringInfo(&facts);
	if (holder->kind == HOLDER_SLOT && holder->pid != 0)
		appendStringInfo(&facts, ", used by process %d", holder->pid);
	if (OidIsValid(holder->user))
		append_holder_fact(&facts, "user ", GetUserNameFromId(holder->user, true));
	append_holder_fact(&facts, "application ", holder->application);
	if (holder->kind == HOLDER_SESSION && holder->backend_type != NULL &&
		strcmp(holder->backend_type, GetBackendTypeDesc(B_BACKEND)) != 0)
		append_holder_fact(&facts, "", holder->backend_type);
	append_holder_fact(&facts, "", holder->state);
	append_holder_fact(&facts, is_unused ? "not used since " : "since ", since);
	if (facts.len > 0)
		appendStringInfo(&buf, " (%s)", facts.data + strlen(", "));
	pfree(facts.data);
	return buf.data;
}

/* append_holder_fact -- one of the things to be told, if it is known. */
static void
append_holder_fact(StringInfo facts, const char *what, const char *value)
{
	if (value != NULL)
		appendStringInfo(facts, ", %s%s", what, value);
}
