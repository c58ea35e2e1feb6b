/*-------------------------------------------------------------------------
 *
 * copy_cleaner.c
 *	  A worker that drops the copy of an index which FULL INPLACE could not drop.
 *
 * A session that has used a table may have each of its indexes open until its
 * transaction ends, a copy, too, that is nobody's any more.  If such a transaction goes on
 * for long, the statement that has made the copy can't wait for it: it was cancelled, or
 * has run into a timeout.  Nor can a session that is terminated.  So a background
 * worker does.
 *
 * README.md says more.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/relcache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "at_exit.h"
#include "debug_point.h"
#include "inplace/copy_cleaner.h"
#include "inplace/index_copy.h"
#include "library.h"
#include "others.h"
#include "own_worker.h"
#include "settings.h"
#include "transaction.h"

/* How long to sleep between two looks: longer and longer */
#define FIRST_NAP_MS	10
#define LAST_NAP_MS		500

/* How long to wait at least, and for a copy that is another process's */
#define LEAST_WAIT_MS	2000

/* What the lock on a copy is on: no relation has such a column */
#define COPY_SUBID		1

/* What a worker is to drop */
typedef struct Leftover
{
	Oid			database;
	Oid			table;
	Oid			copy;
	int			wait_ms;
} Leftover;

/* What the worker knows of it */
typedef struct Cleaning
{
	Leftover	leftover;
	Others	   *users;			/* who may have it open; NULL as long as it
								 * isn't known to be dead */
} Cleaning;

PGDLLEXPORT void pg_cyclone_copy_cleaner_main(Datum arg);

/* The copy that this session has made, and not dropped yet */
static Leftover watched = {0};

static bool has_owner(Oid copy);
static void start_at_exit(void);
static LOCKTAG copy_tag(Oid copy);
static bool take_copy_over(const Leftover *leftover);
static bool take_next_step(Cleaning *cleaning);
static bool is_left_over(const Leftover *leftover);
static bool drop_leftover(const Leftover *leftover);
static void nap_as_cleaner(int ms);

/* copy_cleaner_start -- see copy_cleaner.h. */
bool
copy_cleaner_start(Oid table, Oid copy)
{
	Leftover	leftover = {
		.database = MyDatabaseId,.table = table,.copy = copy,.wait_ms = cyclone_index_wait
	};
	BackgroundWorker worker = own_worker("pg_cyclone cleaner", "pg_cyclone_copy_cleaner_main");

	Assert(OidIsValid(table) && OidIsValid(copy));
	StaticAssertStmt(sizeof(leftover) <= BGW_EXTRALEN, "a leftover must fit into a worker's description");
	if (!IsUnderPostmaster)
		return false;
	snprintf(worker.bgw_name, BGW_MAXLEN, "pg_cyclone cleaner for index %u", copy);
	memcpy(worker.bgw_extra, &leftover, sizeof(leftover));
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

/*
 * copy_cleaner_find -- see copy_cleaner.h.
 *
 * Most tables have neither an invalid index nor one with such a name, and that is known without
 * looking at the catalogs.  A copy that nobody maintains isn't in the list.
 */
void
copy_cleaner_find(Relation rel)
{
	bool		may_have_one = false;

	Assert(IsTransactionState() && ActiveSnapshotSet());
	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	if (RelationUsesLocalBuffers(rel))
		return;
	foreach_oid(index, RelationGetIndexList(rel))
	{
		char	   *name = get_rel_name(index);

		may_have_one |= !get_index_isvalid(index) ||
			(name != NULL && strstr(name, INDEX_COPY_LABEL) != NULL);
	}
	if (!may_have_one)
		return;
	foreach_oid(copy, index_copies_of(RelationGetRelid(rel)))
		if (!has_owner(copy))
		(void) copy_cleaner_start(RelationGetRelid(rel), copy);
}

/* has_owner -- does a session or a worker see to a copy?  If so, another worker is of no use. */
static bool
has_owner(Oid copy)
{
	LOCKTAG		tag = copy_tag(copy);

	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, ExclusiveLock, false);
	return false;
}

/* copy_cleaner_watch -- see copy_cleaner.h. */
void
copy_cleaner_watch(Oid table, Oid copy)
{
	LOCKTAG		tag = copy_tag(copy);

	Assert(IsTransactionState());
	Assert(OidIsValid(table) && OidIsValid(copy));
	at_exit(start_at_exit);
	watched.table = table;
	watched.copy = copy;
	(void) LockAcquire(&tag, ExclusiveLock, true, true);
}

/* copy_cleaner_forget -- see copy_cleaner.h. */
void
copy_cleaner_forget(void)
{
	LOCKTAG		tag = copy_tag(watched.copy);

	/* an error has let go of it */
	if (OidIsValid(watched.copy) && LockHeldByMe(&tag, ExclusiveLock, false))
		LockRelease(&tag, ExclusiveLock, true);
	watched.copy = InvalidOid;
}

/*
 * start_at_exit
 *		The session ends, and may have left a copy.
 *
 * If its transaction has failed there is none, which the worker finds out; the worker also
 * waits until this process has let go of the table.
 */
static void
start_at_exit(void)
{
	if (OidIsValid(watched.copy))
		(void) copy_cleaner_start(watched.table, watched.copy);
	watched.copy = InvalidOid;
}

/* copy_tag -- the lock on a copy as an object. */
static LOCKTAG
copy_tag(Oid copy)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, RelationRelationId, copy, COPY_SUBID);
	return tag;
}

/* pg_cyclone_copy_cleaner_main -- the worker. */
void
pg_cyclone_copy_cleaner_main(Datum arg)
{
	Cleaning	cleaning = {0};
	Leftover   *leftover = &cleaning.leftover;
	TimestampTz start;
	int			ms = FIRST_NAP_MS;
	bool		is_gone;
	LOCKTAG		tag;

	refuse_without_preloading();
	memcpy(leftover, MyBgworkerEntry->bgw_extra, sizeof(*leftover));
	own_worker_begin(leftover->database, BGWORKER_BYPASS_ALLOWCONN);
	DEBUG_POINT("copy-cleaner");
	if (!take_copy_over(leftover))
		return;

	start = GetCurrentTimestamp();
	while (!(is_gone = take_next_step(&cleaning)) &&
		   !TimestampDifferenceExceeds(start, GetCurrentTimestamp(), Max(leftover->wait_ms, LEAST_WAIT_MS)))
	{
		nap_as_cleaner(ms);
		ms = Min(2 * ms, LAST_NAP_MS);
	}

	/*
	 * at once, as an interrupt outside of a transaction would not let go of
	 * it
	 */
	tag = copy_tag(leftover->copy);
	LockRelease(&tag, ExclusiveLock, true);
	if (!is_gone)
		ereport(LOG,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("index %u of database %u, an unfinished copy, is still left over",
						leftover->copy, leftover->database),
				 errdetail("Transactions that have used the table have not ended within cyclone.index_wait."),
				 errhint("The next VACUUM (FULL INPLACE) of the table drops it, and so does DROP INDEX.")));
}

/*
 * take_copy_over
 *		Make the copy this worker's; false if it is another process's, and stays so.
 *
 * A session that ends has the lock a moment longer.  The lock is the worker's until it lets
 * go of it, or an error or interrupt in a transaction does.
 */
static bool
take_copy_over(const Leftover *leftover)
{
	LOCKTAG		tag = copy_tag(leftover->copy);
	TimestampTz start = GetCurrentTimestamp();

	while (!TimestampDifferenceExceeds(start, GetCurrentTimestamp(), LEAST_WAIT_MS))
	{
		bool		is_ours;

		SetCurrentStatementStartTimestamp();
		transaction_begin(false);
		is_ours = LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
		if (!is_ours)
			others_nap(FIRST_NAP_MS);
		transaction_end();
		if (is_ours)
			return true;
	}
	return false;
}

/*
 * take_next_step
 *		Do the next step, if that is possible now; return whether the copy is gone.
 */
static bool
take_next_step(Cleaning *cleaning)
{
	Leftover   *leftover = &cleaning->leftover;
	MemoryContext old;
	bool		is_gone;

	SetCurrentStatementStartTimestamp();
	transaction_begin(true);
	is_gone = !is_left_over(leftover);
	if (is_gone)
		 /* nothing to do */ ;
	else if (index_copy_is_valid(leftover->copy))
		is_gone = drop_leftover(leftover);
	else if (!index_copy_is_dead(leftover->copy))
	{
		if (others_lock_soon(leftover->table, ShareUpdateExclusiveLock))
			(void) index_copy_set_dead(leftover->table, leftover->copy);
	}
	else if (cleaning->users == NULL)
	{
		/* those that come from now on don't open it */
		old = MemoryContextSwitchTo(TopMemoryContext);
		cleaning->users = others_with_lock(leftover->table, AccessExclusiveLock);
		MemoryContextSwitchTo(old);
	}
	if (!is_gone && cleaning->users != NULL && others_look(cleaning->users).end == OTHERS_GONE)
		is_gone = drop_leftover(leftover);
	transaction_end();
	return is_gone;
}

/* is_left_over -- is it still an unfinished copy of an index of that table? */
static bool
is_left_over(const Leftover *leftover)
{
	return list_member_oid(index_copies_of(leftover->table), leftover->copy);
}

/* drop_leftover -- drop the copy, if it is still one; false if the table can't be locked just now. */
static bool
drop_leftover(const Leftover *leftover)
{
	char	   *dropped;

	if (!index_copy_drop(leftover->table, leftover->copy, &dropped))
		return false;
	if (dropped != NULL)
		ereport(LOG,
				(errmsg("dropping index \"%s\", an unfinished copy that a VACUUM (FULL INPLACE) has left",
						dropped)));
	return true;
}

/* nap_as_cleaner -- sleep, in a transaction that nobody waits for. */
static void
nap_as_cleaner(int ms)
{
	SetCurrentStatementStartTimestamp();
	transaction_begin(false);
	others_nap(ms);
	transaction_end();
}
