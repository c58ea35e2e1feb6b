/*-------------------------------------------------------------------------
 *
 * heap_seam.c
 *	  Where the server asks heap to be vacuumed, the engine takes over.
 *
 * Each lazy VACUUM of a heap, whoever asks for it, comes to one function: the
 * relation_vacuum of heap's table access method.  A VACUUM command, one that
 * another library has rewritten or runs by itself, and autovacuum do all come
 * there, with the table opened and locked, in a transaction of its own, as
 * its owner, its options resolved.  What the server does before and after,
 * the list of tables, privileges, TOAST tables, ANALYZE, is none of our
 * business.
 *
 * The server has no hook there, and heap's routines are a constant.  So the
 * one pointer is changed when the library is preloaded: in the postmaster,
 * before it has a child, so that each process inherits it.  The constant's
 * page is made writable for that moment, and gets back the protection that it
 * had.  No table's routine is changed, so all tables of heap still have the
 * same one, and whoever compares pointers finds what was there before.
 *
 * If that fails, there is a warning at the server's start; each lazy VACUUM
 * is the server's then.  VACUUM FULL doesn't come here: see utility_hook.c.
 *
 * An access method that made itself a copy of heap's routines may bring its
 * own tables here.  They are left to the server's routine, as is everything in
 * a single-user server, which is for emergencies.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "access/heapam.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "storage/fd.h"

#include "autovacuum/autovacuum.h"
#include "command/heap_seam.h"
#include "compat.h"
#include "debug_point.h"
#include "engine/table_vacuum.h"
#include "history/history.h"
#include "pace/pace.h"
#include "report/progress.h"
#include "settings.h"
#include "team/team.h"

static RelationVacuum servers_vacuum = NULL;

static void vacuum_heap(Relation rel, compat_am_vacuum_params *params,
						BufferAccessStrategy strategy);
static void vacuum_by_engine(Relation rel, compat_am_vacuum_params *params,
							 BufferAccessStrategy strategy);
static void end_command(bool own_command);
static bool replace_pointer(RelationVacuum *place, RelationVacuum value);
static bool find_protection(uintptr_t address, int *protection);

/*
 * heap_seam_init
 *		Have heap's tables vacuumed by the engine.
 *
 * To be called once, in the postmaster, while the library is preloaded.
 * Warns, and changes nothing, if that isn't possible.
 */
void
heap_seam_init(void)
{
	TableAmRoutine *heap = unconstify(TableAmRoutine *, GetHeapamTableAmRoutine());
	RelationVacuum before = heap->relation_vacuum;

	if (replace_pointer(&heap->relation_vacuum, vacuum_heap))
		servers_vacuum = before;
	else
		ereport(WARNING,
				(errmsg("pg_cyclone cannot take over VACUUM: heap's table access method could not be changed: %m"),
				 errdetail("VACUUM and autovacuum are PostgreSQL's own. VACUUM (FULL) is pg_cyclone's.")));
}

/*
 * heap_seam_is_set
 *		Do VACUUMs of heap come to the engine, if nobody has switched it off?
 */
bool
heap_seam_is_set(void)
{
	return servers_vacuum != NULL;
}

/*
 * vacuum_heap
 *		The relation_vacuum of heap: by the engine, or by the server's own.
 *
 * As the table access method has it, the caller is in a transaction with a
 * snapshot, and holds a ShareUpdateExclusiveLock on rel.
 */
static void
vacuum_heap(Relation rel, compat_am_vacuum_params *params, BufferAccessStrategy strategy)
{
	if (!IsUnderPostmaster || rel->rd_tableam != GetHeapamTableAmRoutine())
		servers_vacuum(rel, params, strategy);
	else if (AmAutoVacuumWorkerProcess())
		autovacuum_vacuum(rel, params, strategy, servers_vacuum);
	else if (cyclone_enabled)
		vacuum_by_engine(rel, params, strategy);
	else
		servers_vacuum(rel, params, strategy);
}

/*
 * vacuum_by_engine
 *		Have the engine vacuum a table in a session.
 */
static void
vacuum_by_engine(Relation rel, compat_am_vacuum_params *params, BufferAccessStrategy strategy)
{
	/* not if utility_hook.c has seen the statement */
	bool		own_command = !pace_command_is_running();
	TableResult result;

	PG_TRY();
	{
		if (own_command)
			pace_begin_command(NULL);
		pace_write_steadily();
		history_begin(HISTORY_VACUUM, rel, params);
		table_vacuum(rel, params, strategy, NULL, &result);
	}
	PG_CATCH();
	{
		team_give_up();
		end_command(own_command);
		history_fail();
		PG_RE_THROW();
	}
	PG_END_TRY();
	end_command(own_command);
	history_vacuumed(&result);
	history_end();
}

/* end_command -- a table is done, or has failed. */
static void
end_command(bool own_command)
{
	if (own_command)
		pace_end_command();
	progress_clear();
}

/*
 * replace_pointer
 *		Write a function's address to a place in memory that may be for reading
 *		only.
 *
 * Returns false, with errno set, if that isn't possible; then nothing has
 * changed.
 */
static bool
replace_pointer(RelationVacuum *place, RelationVacuum value)
{
	uintptr_t	page_size = sysconf(_SC_PAGESIZE);
	uintptr_t	start = TYPEALIGN_DOWN(page_size, (uintptr_t) place);
	uintptr_t	end = TYPEALIGN(page_size, (uintptr_t) (place + 1));
	int			protection;

	if (DEBUG_LIMIT(seam_fails, 0))
	{
		errno = EACCES;
		return false;
	}
	if (!find_protection((uintptr_t) place, &protection))
		return false;
	if ((protection & PROT_WRITE) == 0 &&
		mprotect((void *) start, end - start, protection | PROT_WRITE) != 0)
		return false;
	*place = value;
	if ((protection & PROT_WRITE) == 0 &&
		mprotect((void *) start, end - start, protection) != 0)
		ereport(WARNING,
				(errmsg("could not protect memory again after changing it: %m")));
	return true;
}

/*
 * find_protection
 *		What may be done with the memory at an address of this process?
 *
 * Returns false, with errno set, if the system doesn't tell.  The pointer
 * can't be in two mappings, as it is aligned.
 */
static bool
find_protection(uintptr_t address, int *protection)
{
	FILE	   *maps = AllocateFile("/proc/self/maps", "r");
	char		line[1024];
	bool		found = false;

	if (maps == NULL)
		return false;
	while (!found && fgets(line, sizeof(line), maps) != NULL)
	{
		uintptr_t	start,
					end;
		char		allowed[5];

		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &start, &end, allowed) != 3 ||
			address < start || address >= end)
			continue;
		*protection = (allowed[0] == 'r' ? PROT_READ : 0) |
			(allowed[1] == 'w' ? PROT_WRITE : 0) |
			(allowed[2] == 'x' ? PROT_EXEC : 0);
		found = true;
	}
	FreeFile(maps);
	if (!found)
		errno = ENOENT;
	return found;
}
