/*-------------------------------------------------------------------------
 *
 * failsafe.c
 *	  The wraparound failsafe of a running VACUUM.
 *
 * When a table's relfrozenxid or relminmxid has become dangerously old, only
 * what advances it matters: from then on indexes are left alone, nothing is
 * truncated, cost-based delay ends, and the ring of buffers is given up for
 * all of shared buffers.  The leader decides; the workers follow when they
 * see the shared flag, which they look at once a page.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/progress.h"
#include "pgstat.h"

#include "compat.h"
#include "engine/phases.h"

static void stop_sparing_resources(void);

/*
 * failsafe_check
 *		Leader only: is the failsafe on, or must it be from now on?
 *
 * Warns when it comes on.
 */
bool
failsafe_check(TableVacuum *vacuum)
{
	const int	index[] = {PROGRESS_VACUUM_INDEXES_TOTAL, PROGRESS_VACUUM_INDEXES_PROCESSED};
	const int64 zeros[] = {0, 0};

	Assert(is_leader(vacuum));
	Assert(TransactionIdIsNormal(vacuum->shared->cutoffs.relfrozenxid));
	/* the workers know what the leader knows */
	Assert(!VacuumFailsafeActive || pg_atomic_read_u32(&vacuum->shared->failsafe) != 0);

	if (VacuumFailsafeActive)
		return true;
	if (likely(!vacuum_xid_failsafe_check(&vacuum->shared->cutoffs)))
		return false;

	stop_sparing_resources();
	pg_atomic_write_u32(&vacuum->shared->failsafe, 1);
	pgstat_progress_update_multi_param(lengthof(index), index, zeros);
	compat_report_failsafe();

	ereport(WARNING,
			(errmsg("bypassing nonessential maintenance of table \"%s.%s.%s\" as a failsafe after %d index scans",
					vacuum->dbname, vacuum->relnamespace, vacuum->relname,
					vacuum->shared->num_index_scans),
			 errdetail("The table's relfrozenxid or relminmxid is too far in the past."),
			 errhint("Consider increasing configuration parameter \"maintenance_work_mem\" or \"autovacuum_work_mem\".\n"
					 "You might also need to consider other ways for VACUUM to keep up with the allocation of transaction IDs.")));
	return true;
}

/*
 * failsafe_notice
 *		Workers: do as the leader has decided.
 */
void
failsafe_notice(TableVacuum *vacuum)
{
	/* it doesn't come on by itself, nor goes off */
	Assert(!VacuumFailsafeActive || pg_atomic_read_u32(&vacuum->shared->failsafe) != 0);

	if (unlikely(pg_atomic_read_u32(&vacuum->shared->failsafe) != 0) &&
		!VacuumFailsafeActive)
		stop_sparing_resources();
}

/* stop_sparing_resources -- no more delay, no more ring, in this process. */
static void
stop_sparing_resources(void)
{
	Assert(!VacuumFailsafeActive);
	VacuumFailsafeActive = true;
	pace_give_up();
}
