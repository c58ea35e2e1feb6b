/*-------------------------------------------------------------------------
 *
 * test_tuple_fate.c
 *	  Which tuples a rewrite takes along: rewrite/tuple_fate.c.
 *
 * Each kind of inserter with each kind of deleter or locker, and all hints that
 * there may be of them.  The right answer follows from how the transactions ended, so
 * it is worked out from that alone here, for the server's function, too.  A build with
 * assertions asks the server's own one, about every tuple.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"

/* so that it can be seen when the server is asked */
#undef USE_ASSERT_CHECKING
#include "rewrite/tuple_fate.c"
#include "unit.h"

#define OLDEST_XMIN		1000
#define MULTIXACT		77

typedef enum Outcome
{
	COMMITTED,
	ABORTED,
	RUNNING,
	OURS,						/* which is running, too */
} Outcome;

/* Transactions, and how they have ended */
static const struct
{
	TransactionId xid;
	Outcome		outcome;
}			transactions[] = {
	{FrozenTransactionId, COMMITTED},
	{999, COMMITTED}, {1000, COMMITTED}, {1001, COMMITTED},
	{998, ABORTED}, {1002, ABORTED},
	{1003, RUNNING}, {1004, OURS},
};

/* What a tuple's xmax may say */
typedef enum Deleter
{
	NOBODY,
	DELETER,
	LOCKER,
	UPDATER_OF_MULTIXACT,
	LOCKERS_OF_MULTIXACT,
	DELETERS
} Deleter;

static Deleter deleter;
static FormData_pg_class form;
static RelationData relation;
static int	nasked;				/* tuples that the server was asked about */
static bool sets_hints;			/* may it set some? */
static TransactionId known;		/* a hint tells how it ended; the log may have
								 * forgotten it */

/* outcome_of -- how a transaction has ended. */
static Outcome
outcome_of(TransactionId xid)
{
	for (int i = 0; i < lengthof(transactions); i++)
		if (transactions[i].xid == xid)
			return transactions[i].outcome;
	unit_fail(__FILE__, __LINE__, "no such transaction");
}

/* TransactionIdIsCurrentTransactionId -- is it ours? */
bool
TransactionIdIsCurrentTransactionId(TransactionId xid)
{
	return outcome_of(xid) == OURS;
}

/* TransactionIdIsInProgress -- does it run? */
bool
TransactionIdIsInProgress(TransactionId xid)
{
	return outcome_of(xid) >= RUNNING;
}

/* TransactionIdDidCommit -- has it committed? */
bool
TransactionIdDidCommit(TransactionId xid)
{
	CHECK(xid != known);
	return outcome_of(xid) == COMMITTED;
}

/* HeapTupleHeaderIsOnlyLocked -- has nobody updated or deleted it in the end? */
bool
HeapTupleHeaderIsOnlyLocked(HeapTupleHeader tuple)
{
	return deleter == NOBODY || deleter == LOCKER || deleter == LOCKERS_OF_MULTIXACT ||
		outcome_of(HeapTupleHeaderGetUpdateXid(tuple)) == ABORTED;
}

/* HeapTupleSatisfiesVacuum -- by how the transactions have ended. */
HTSV_Result
HeapTupleSatisfiesVacuum(HeapTuple tuple, TransactionId oldest_xmin, Buffer buffer)
{
	HeapTupleHeader header = tuple->t_data;
	Outcome		inserted = outcome_of(HeapTupleHeaderGetRawXmin(header));
	TransactionId xmax;

	nasked++;
	if (inserted == ABORTED)
		return HEAPTUPLE_DEAD;
	if (inserted == COMMITTED && sets_hints)
		header->t_infomask |= HEAP_XMIN_COMMITTED;
	if (HeapTupleHeaderIsOnlyLocked(header))
		return inserted == COMMITTED ? HEAPTUPLE_LIVE : HEAPTUPLE_INSERT_IN_PROGRESS;
	xmax = HeapTupleHeaderGetUpdateXid(header);
	if (outcome_of(xmax) != COMMITTED)
		return HEAPTUPLE_DELETE_IN_PROGRESS;
	if (inserted != COMMITTED)
		return HEAPTUPLE_INSERT_IN_PROGRESS;
	return TransactionIdPrecedes(xmax, oldest_xmin) ? HEAPTUPLE_DEAD : HEAPTUPLE_RECENTLY_DEAD;
}

/* right_fate -- what must become of a tuple. */
static TupleFate
right_fate(Outcome inserted, bool is_kept, TransactionId xmax)
{
	if (inserted == ABORTED)
		return TUPLE_DEAD;
	if (is_kept)
		return TUPLE_LIVE;
	if (outcome_of(xmax) != COMMITTED)
		return TUPLE_RECENTLY_DEAD;
	if (inserted != COMMITTED)
		return TUPLE_LIVE;
	return xmax < OLDEST_XMIN ? TUPLE_DEAD : TUPLE_RECENTLY_DEAD;
}

/*
 * check_hints
 *		All hints are set that there may be, on the copy; none is wrong.
 */
static void
check_hints(uint16 before, uint16 infomask, Outcome inserted, Outcome ended, bool was_asked)
{
	uint16		xmin_hints = infomask & HEAP_XMIN_FROZEN;
	bool		may_have_ended = deleter == DELETER || deleter == LOCKER;

	CHECK_EQ(before & ~infomask, 0);
	CHECK_EQ((infomask & ~before) & ~(HEAP_XMIN_FROZEN | HEAP_XMAX_COMMITTED | HEAP_XMAX_INVALID), 0);
	CHECK_EQ(xmin_hints, (before & HEAP_XMIN_FROZEN) == HEAP_XMIN_FROZEN ? HEAP_XMIN_FROZEN :
			 inserted == COMMITTED && (!(before & HEAP_MOVED) || sets_hints || before & HEAP_XMIN_COMMITTED) ? HEAP_XMIN_COMMITTED :
			 inserted == ABORTED && (!was_asked || before & HEAP_XMIN_INVALID) ? HEAP_XMIN_INVALID : 0);
	if (infomask & ~before & HEAP_XMAX_COMMITTED)
		CHECK(deleter == DELETER && ended == COMMITTED);
	if (infomask & ~before & HEAP_XMAX_INVALID)
		CHECK((deleter == DELETER && ended == ABORTED) || (deleter == LOCKER && ended < RUNNING));
	if (may_have_ended && inserted != ABORTED && !was_asked)
		CHECK(infomask & (HEAP_XMAX_COMMITTED | HEAP_XMAX_INVALID));
}

/*
 * check_fate
 *		Of a tuple with these hints: it must be right, and the server isn't asked but
 *		for what is not as expected.
 */
static void
check_fate(TransactionId xmin, TransactionId xmax, uint16 infomask)
{
	Outcome		inserted = outcome_of(xmin);
	Outcome		ended = outcome_of(xmax);
	bool		is_kept = deleter == NOBODY || deleter == LOCKER ||
		deleter == LOCKERS_OF_MULTIXACT || ended == ABORTED;
	bool		is_multixact = deleter == UPDATER_OF_MULTIXACT || deleter == LOCKERS_OF_MULTIXACT;
	TupleFate	fate;
	HeapTupleHeaderData header = {0};
	HeapTupleData tuple = {.t_data = &header};
	uint16		result;

	unit_case("xmin %u, xmax %u, deleter %d, infomask %x", xmin, xmax, deleter, infomask);
	header.t_infomask = infomask;
	HeapTupleHeaderSetXmin(&header, xmin);
	HeapTupleHeaderSetXmax(&header, is_multixact ? MULTIXACT : xmax);
	unit_updater = xmax;
	unit_notice = NULL;
	nasked = 0;
	known = (infomask & HEAP_XMIN_FROZEN) && xmin != xmax ? xmin : InvalidTransactionId;
	fate = tuple_fate(&relation, &tuple, 1, OLDEST_XMIN, &result);

	CHECK_EQ(fate, right_fate(inserted, is_kept, xmax));
	check_hints(infomask, result, inserted, ended, nasked > 0);
	if (nasked == 0)
	{
		CHECK_EQ(header.t_infomask, infomask);
		CHECK(unit_notice == NULL);
		/* and so it decides what is not for it to decide: never */
		CHECK(inserted < RUNNING);
		CHECK(!(infomask & HEAP_MOVED) || infomask & HEAP_XMIN_FROZEN);
		CHECK(inserted == ABORTED || !is_multixact);
		CHECK(inserted == ABORTED || deleter == NOBODY || infomask & HEAP_XMAX_INVALID || ended < RUNNING);
	}
	else
		CHECK(inserted >= RUNNING || is_multixact || (infomask & HEAP_MOVED) ||
			  (deleter != NOBODY && ended >= RUNNING));

	/* one of others that runs is a surprise, with our lock on the table */
	if (inserted != ABORTED && !is_kept && ended == RUNNING)
		CHECK_TEXT(unit_notice, "concurrent delete in progress within table \"t\"");
	else if (inserted == RUNNING && (is_kept || ended == COMMITTED))
		CHECK_TEXT(unit_notice, "concurrent insert in progress within table \"t\"");
	else
		CHECK(unit_notice == NULL);
}

/* check_xmax -- each deleter, with all hints about it that there may be. */
static void
check_xmax(TransactionId xmin, TransactionId xmax, uint16 infomask)
{
	Outcome		ended = outcome_of(xmax);

	deleter = NOBODY;
	check_fate(xmin, xmax, infomask | HEAP_XMAX_INVALID);
	deleter = DELETER;
	check_fate(xmin, xmax, infomask);
	if (ended == COMMITTED)
		check_fate(xmin, xmax, infomask | HEAP_XMAX_COMMITTED);
	if (ended == ABORTED)
		check_fate(xmin, xmax, infomask | HEAP_XMAX_INVALID);
	deleter = LOCKER;
	check_fate(xmin, xmax, infomask | HEAP_XMAX_LOCK_ONLY | HEAP_XMAX_EXCL_LOCK);
	check_fate(xmin, xmax, infomask | HEAP_XMAX_LOCK_ONLY | HEAP_XMAX_KEYSHR_LOCK);
	if (ended < RUNNING)
		check_fate(xmin, xmax, infomask | HEAP_XMAX_LOCK_ONLY | HEAP_XMAX_EXCL_LOCK | HEAP_XMAX_INVALID);
	deleter = UPDATER_OF_MULTIXACT;
	check_fate(xmin, xmax, infomask | HEAP_XMAX_IS_MULTI | HEAP_XMAX_EXCL_LOCK);
	deleter = LOCKERS_OF_MULTIXACT;
	check_fate(xmin, xmax, infomask | HEAP_XMAX_IS_MULTI | HEAP_XMAX_LOCK_ONLY | HEAP_XMAX_KEYSHR_LOCK);
}

/* check_transactions -- one has inserted, another deleted it, or it has done neither. */
static void
check_transactions(int inserter, int ender, uint16 infomask)
{
	TransactionId xmin = transactions[inserter].xid;
	TransactionId xmax = transactions[ender].xid;
	Outcome		outcome = transactions[inserter].outcome;

	/*
	 * moved by a VACUUM FULL of long ago, which has committed: as if it
	 * wasn't
	 */
	if (xmax == FrozenTransactionId || (infomask & HEAP_MOVED && outcome >= RUNNING))
		return;
	if (xmin != FrozenTransactionId)
		check_xmax(xmin, xmax, infomask);
	if (outcome == COMMITTED)
	{
		check_xmax(xmin, xmax, infomask | HEAP_XMIN_COMMITTED);
		check_xmax(xmin, xmax, infomask | HEAP_XMIN_FROZEN);
	}
	if (outcome == ABORTED)
		check_xmax(xmin, xmax, infomask | HEAP_XMIN_INVALID);
}

/* test_each_tuple_has_the_right_fate -- and hints. */
UNIT_TEST(test_each_tuple_has_the_right_fate)
{
	for (int i = 0; i < lengthof(transactions); i++)
		for (int j = 0; j < lengthof(transactions); j++)
			for (int moved = 0; moved < 2; moved++)
				for (int hints = 0; hints < 2; hints++)
				{
					sets_hints = hints;
					check_transactions(i, j, moved ? HEAP_MOVED_OFF : 0);
				}
}

/* test_the_horizon_may_be_at_the_end_of_all_numbers -- they go round. */
UNIT_TEST(test_the_horizon_may_be_at_the_end_of_all_numbers)
{
	HeapTupleHeaderData header = {.t_infomask = HEAP_XMIN_COMMITTED | HEAP_XMAX_COMMITTED};
	HeapTupleData tuple = {.t_data = &header};
	uint16		result;

	HeapTupleHeaderSetXmin(&header, 999);
	HeapTupleHeaderSetXmax(&header, PG_UINT32_MAX - 5);
	CHECK_EQ(tuple_fate(&relation, &tuple, 1, 10, &result), TUPLE_DEAD);
	HeapTupleHeaderSetXmax(&header, 10);
	CHECK_EQ(tuple_fate(&relation, &tuple, 1, PG_UINT32_MAX - 5, &result), TUPLE_RECENTLY_DEAD);
}

/*
 * test_a_newer_end
 *		Is the result of an update by a transaction that isn't old, and not known to
 *		have aborted.
 */
UNIT_TEST(test_a_newer_end)
{
	static const uint16 hints[] = {0, HEAP_XMIN_COMMITTED, HEAP_XMIN_INVALID, HEAP_XMIN_FROZEN};

	for (TransactionId xmin = OLDEST_XMIN - 1; xmin <= OLDEST_XMIN + 1; xmin++)
		for (int i = 0; i < lengthof(hints); i++)
			for (int updated = 0; updated < 2; updated++)
			{
				HeapTupleHeaderData header = {0};
				HeapTupleData tuple = {.t_data = &header};
				uint16		infomask = hints[i] | (updated ? HEAP_UPDATED : 0) | HEAP_XMAX_INVALID;
				bool		is_end = updated && xmin >= OLDEST_XMIN && i < 2;

				unit_case("xmin %u, infomask %x", xmin, infomask);
				HeapTupleHeaderSetXmin(&header, xmin);
				CHECK_EQ(tuple_is_newer_end(&header, infomask, OLDEST_XMIN), is_end);
				/* also a dead one, as an old version may point at it */
				CHECK_EQ(tuple_is_in_chain(&tuple, TUPLE_DEAD, infomask, OLDEST_XMIN), is_end);
				CHECK_EQ(tuple_is_in_chain(&tuple, TUPLE_LIVE, infomask, OLDEST_XMIN), is_end);
			}
}

/* check_older_end -- of a tuple that points there, and may be dead. */
static void
check_older_end(const ItemPointerData *ctid, uint16 infomask, bool is_end)
{
	HeapTupleHeaderData header = {.t_ctid = *ctid,.t_infomask = infomask};
	HeapTupleData tuple = {.t_data = &header};

	ItemPointerSet(&tuple.t_self, 3, 7);
	HeapTupleHeaderSetXmin(&header, 999);
	HeapTupleHeaderSetXmax(&header, 1001);
	CHECK_EQ(tuple_is_older_end(&tuple, TUPLE_RECENTLY_DEAD, infomask), is_end);
	CHECK_EQ(tuple_is_in_chain(&tuple, TUPLE_RECENTLY_DEAD, infomask, OLDEST_XMIN), is_end);
	/* a live one has an updater only on a damaged page */
	CHECK(!tuple_is_in_chain(&tuple, TUPLE_LIVE, infomask, OLDEST_XMIN));
	CHECK(!tuple_is_in_chain(&tuple, TUPLE_DEAD, infomask, OLDEST_XMIN));
}

/* test_an_older_end -- points at a newer version, in this table. */
UNIT_TEST(test_an_older_end)
{
	ItemPointerData itself;
	ItemPointerData newer;
	ItemPointerData elsewhere;

	ItemPointerSet(&itself, 3, 7);
	ItemPointerSet(&newer, 3, 8);
	ItemPointerSet(&elsewhere, MovedPartitionsBlockNumber, MovedPartitionsOffsetNumber);
	deleter = DELETER;
	check_older_end(&newer, 0, true);
	check_older_end(&newer, HEAP_XMAX_COMMITTED, true);
	check_older_end(&newer, HEAP_XMAX_INVALID, false);
	check_older_end(&newer, HEAP_XMAX_LOCK_ONLY, false);
	check_older_end(&itself, 0, false);
	check_older_end(&elsewhere, 0, false);
	ItemPointerSet(&newer, 4, 7);
	check_older_end(&newer, 0, true);
	deleter = LOCKERS_OF_MULTIXACT; /* which only the server can tell */
	check_older_end(&newer, HEAP_XMAX_IS_MULTI, false);
}

/* unit_set_up -- the table has a name. */
void
unit_set_up(void)
{
	relation.rd_rel = &form;
	strcpy(NameStr(form.relname), "t");
}
