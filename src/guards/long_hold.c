/*-------------------------------------------------------------------------
 *
 * long_hold.c
 *	  What the log says of a vacuum that a guard holds for long.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog_internal.h"
#include "miscadmin.h"

#include "clock.h"
#include "debug_point.h"
#include "guards/guards_state.h"
#include "report/pretty_bytes.h"

/* The log says so when a guard has held a vacuum for this time. */
#define LONG_HOLD_MS		60000

/* guards_say_if_held_for_long -- once for each guard and command, in the log, with what to do. */
void
guards_say_if_held_for_long(Guard guard)
{
	GuardedVacuum *vacuum = guarded.vacuum;
	uint32		not_yet = 0;
	int			seconds;

	Assert(guard < NUM_GUARDS);
	seconds = guards_held_ns(vacuum, guard) / NS_PER_S;

	if (guards_held_ns(vacuum, guard) < (uint64) DEBUG_LIMIT(long_hold, LONG_HOLD_MS) * NS_PER_MS ||
		!pg_atomic_compare_exchange_u32(&vacuum->has_logged[guard], &not_yet, 1))
		return;
	if (guard == GUARD_PAUSE)
	{
		char	   *by = GetUserNameFromId(pg_atomic_read_u32(guards_paused_by(vacuum)), true);

		ereport(LOG,
				(errmsg("VACUUM of %s has been paused for %d s", guards_vacuum_name(vacuum), seconds),
				 errdetail("It was paused by role \"%s\".", by != NULL ? by : "?"),
				 errhint("SELECT cyclone.resume(%d) lets it go on.", vacuum->pid)));
	}
	else if (guard == GUARD_LAG)
		ereport(LOG,
				(errmsg("VACUUM of %s has been held back for %d s in all by \"cyclone.max_replica_lag\"",
						guards_vacuum_name(vacuum), seconds),
				 errdetail("The standby or subscriber that lags most is that of process %d.",
						   (int) pg_atomic_read_u32(&guards_shared->lag_pid)),
				 errhint("See pg_stat_replication. If VACUUM is not to wait for it, name the others in \"cyclone.lag_of\", or set \"cyclone.max_replica_lag\" to a higher value, and reload the configuration; running VACUUMs notice.")));
	else if (guard == GUARD_DISK)
	{
		DiskHolder	holder = pg_atomic_read_u32(&vacuum->disk_stops);
		bool		is_wal = holder != DISK_CHECKPOINT && holder != DISK_NO_ROOM;

		ereport(LOG,
				(errmsg("VACUUM of %s has been held back for %d s in all by \"cyclone.min_free_disk\"",
						guards_vacuum_name(vacuum), seconds),
				 errdetail("%s are free in the file system of \"%s\", and %s should stay free. %s",
						   pretty_bytes(pg_atomic_read_u64(&vacuum->disk_free)), XLOGDIR,
						   pretty_bytes(pg_atomic_read_u64(&vacuum->disk_bound)),
						   guards_disk_reason(holder)),
				 is_wal ?
				 errhint("See pg_replication_slots and pg_stat_archiver: drop a slot that nobody needs, or fix archive_command. Or set \"cyclone.min_free_disk\" to a lower value and reload the configuration; running VACUUMs notice.") :
				 errhint("Free some space there, or set \"max_wal_size\" to a lower value.")));
	}
	else
		ereport(LOG,
				(errmsg("VACUUM of %s has been held back for %d s in all by \"cyclone.max_wal_rate\"",
						guards_vacuum_name(vacuum), seconds),
				 errhint("If it is to end earlier, set \"cyclone.max_wal_rate\" to a higher value and reload the configuration; running VACUUMs notice.")));
}
