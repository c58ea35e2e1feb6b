/*-------------------------------------------------------------------------
 *
 * failsafe.c
 *	  The wraparound failsafe of a running VACUUM.
 *
 * When a table's relfrozenxid or relminmxid has become dangerously old, VACUUM does
 * only what advances it: from then on indexes are left alone, nothing is truncated,
 * cost-based delay ends, and the ring of buffers is given up for all of shared
 * buffers.  The leader decides; the workers follow when they see the shared flag,
 * which they look at once a page.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "commands/progress.h"
#include "pgstat.h"
#include "postmaster/autovacuum.h"

#include "compat.h"
#include "engine/phases.h"

static double need_of_vacuum(const struct VacuumCutoffs *cutoffs);
static double need_of_age(double age, int limit, int failsafe_age);
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

	Assert(is_leader(vacuum) && CritSectionCount == 0);
	Assert(TransactionIdIsNormal(vacuum->shared->cutoffs.relfrozenxid));
	/* the workers know what the leader knows */
	Assert(!VacuumFailsafeActive || pg_atomic_read_u32(&vacuum->shared->failsafe) != 0);

	if (VacuumFailsafeActive)
		return true;
	if (likely(!vacuum_xid_failsafe_check(&vacuum->shared->cutoffs)))
	{
		pace_set_need(need_of_vacuum(&vacuum->shared->cutoffs));
		return false;
	}

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
 * need_of_vacuum
 *		How near is the failsafe, from 0 at the age at which autovacuum comes anyway to 1?
 *
 * The least speed of a VACUUM with an adaptive delay rises with it, and so doesn't leap
 * when the failsafe comes.
 */
static double
need_of_vacuum(const struct VacuumCutoffs *cutoffs)
{
	double		xid_age = (int32) (ReadNextTransactionId() - cutoffs->relfrozenxid);
	double		multixact_age = (int32) (ReadNextMultiXactId() - cutoffs->relminmxid);
	double		by_xid = need_of_age(xid_age, autovacuum_freeze_max_age, vacuum_failsafe_age);
	double		by_multixact = need_of_age(multixact_age, autovacuum_multixact_freeze_max_age,
										   vacuum_multixact_failsafe_age);

	return Max(by_xid, by_multixact);
}

/*
 * need_of_age -- the need by one of the two ages.  As for the server, the failsafe
 * comes at 1.05 times the limit at the earliest.
 */
static double
need_of_age(double age, int limit, int failsafe_age)
{
	double		most = Max(failsafe_age, limit * 1.05);

	return Min(Max((age - limit) / (most - limit), 0), 1);
}

/*
 * failsafe_notice
 *		Workers: do as the leader has decided.
 */
void
failsafe_notice(TableVacuum *vacuum)
{
	/* only the leader turns it on, and nothing turns it off */
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
