/*-------------------------------------------------------------------------
 *
 * heap_seam.c
 *	  Where the server asks heap to vacuum a table, the engine takes over.
 *
 * Each lazy VACUUM of a heap comes to one function: the relation_vacuum of heap's table
 * access method.  The table is open and locked then, in a transaction of its own, as its
 * owner, with its options resolved.  README.md says how that function is replaced, and which
 * tables are left to the server's routine.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "access/heapam.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
#include "storage/lmgr.h"

#include "audit_mark.h"
#include "autovacuum/autovacuum.h"
#include "command/heap_seam.h"
#include "command/relations.h"
#include "compat.h"
#include "debug_point.h"
#include "engine/table_run.h"
#include "inplace/cleaner.h"
#include "scope.h"
#include "settings.h"

/* A place in memory, and its protection */
typedef struct Place
{
	uintptr_t	address;
	uintptr_t	page_size;
	bool		is_known;
	int			protection;		/* PROT_... */
} Place;

/* What is known of a table in a session if a run fails */
typedef struct TableInHand
{
	TableKey	key;
	const char *name;
} TableInHand;

/* Heap's own routine; NULL until heap_seam_init has put ours in its place */
static RelationVacuum servers_vacuum = NULL;

static void vacuum_heap(Relation rel, compat_am_vacuum_params *params,
						BufferAccessStrategy strategy);
static bool is_for_engine(Relation rel, compat_am_vacuum_params *params);
static void vacuum_by_engine(Relation rel, compat_am_vacuum_params *params,
							 BufferAccessStrategy strategy);
static void note_failure(void *state);
static const char *replace_pointer(RelationVacuum *place, RelationVacuum value);
static int	find_protection(struct dl_phdr_info *program, size_t size, void *arg);

/* heap_seam_init -- see heap_seam.h. */
void
heap_seam_init(void)
{
	TableAmRoutine *heap = unconstify(TableAmRoutine *, GetHeapamTableAmRoutine());
	RelationVacuum before = heap->relation_vacuum;
	const char *failure;

	Assert(!IsUnderPostmaster && servers_vacuum == NULL);

	failure = replace_pointer(&heap->relation_vacuum, vacuum_heap);
	if (failure == NULL)
		servers_vacuum = before;
	else
		ereport(WARNING,
				(errmsg("pg_cyclone cannot take over VACUUM: heap's table access method could not be changed: %s",
						failure),
				 errdetail("VACUUM and autovacuum are PostgreSQL's own. VACUUM (FULL) is pg_cyclone's.")));
}

/* heap_seam_is_set -- see heap_seam.h. */
bool
heap_seam_is_set(void)
{
	return servers_vacuum != NULL;
}

/*
 * vacuum_heap
 *		The relation_vacuum of heap: by the engine, or by PostgreSQL's routine.
 *
 * The caller is in a transaction with a snapshot, and holds a ShareUpdateExclusiveLock
 * on rel, as for any access method.
 */
static void
vacuum_heap(Relation rel, compat_am_vacuum_params *params, BufferAccessStrategy strategy)
{
	if (IsUnderPostmaster)
	{
		audit_mark_forget();
		relations_note_table(RelationGetRelid(rel));
	}
	if (!IsUnderPostmaster || rel->rd_tableam != GetHeapamTableAmRoutine())
		servers_vacuum(rel, params, strategy);
	else if (AmAutoVacuumWorkerProcess())
		autovacuum_vacuum(rel, params, strategy, servers_vacuum);
	else if (settings_enabled() && is_for_engine(rel, params))
		vacuum_by_engine(rel, params, strategy);
	else
		servers_vacuum(rel, params, strategy);
	if (IsUnderPostmaster && settings_enabled())
		cleaner_find(rel);
}

/*
 * is_for_engine
 *		Is a table for the engine, by cyclone.databases and cyclone.tables, and by what
 *		audits have found?  If not, say so.
 */
static bool
is_for_engine(Relation rel, compat_am_vacuum_params *params)
{
	TableKey	key = table_log_key(rel);

	Assert(CheckRelationLockedByMe(rel, ShareUpdateExclusiveLock, true));
	if (table_log_audit_has_failed(&key))
	{
		ereport(WARNING,
				(errmsg("table \"%s\" is left to PostgreSQL, as an audit has failed on it",
						RelationGetRelationName(rel)),
				 errhint("The function cyclone.autovacuum_reset() ends that.")));
		return false;
	}
	if (scope_has_table(rel))
		return true;
	ereport((params->options & VACOPT_VERBOSE) != 0 ? INFO : DEBUG1,
			(errmsg("table \"%s\" is left to PostgreSQL, by cyclone.databases or cyclone.tables",
					RelationGetRelationName(rel))));
	return false;
}

/*
 * vacuum_by_engine
 *		Have the engine vacuum a table in a session.
 */
static void
vacuum_by_engine(Relation rel, compat_am_vacuum_params *params, BufferAccessStrategy strategy)
{
	TableInHand table = {
		.key = table_log_key(rel),
		.name = pstrdup(RelationGetRelationName(rel))
	};
	TableRunCaller caller = {.fail = note_failure,.state = &table};
	TableResult result;

	table_run(rel, params, strategy, &caller, &result);
}

/* note_failure -- if an audit has raised the error that ends a run, leave the table to the server. */
static void
note_failure(void *state)
{
	const TableInHand *table = state;

	(void) autovacuum_audit_has_failed(&table->key, table->name);
}

/*
 * replace_pointer
 *		Write a function's address to a place in memory that may be for reading
 *		only.
 *
 * Returns NULL, or the text of what failed, and then nothing has changed.
 */
static const char *
replace_pointer(RelationVacuum *place, RelationVacuum value)
{
	uintptr_t	page_size = sysconf(_SC_PAGESIZE);
	uintptr_t	start = TYPEALIGN_DOWN(page_size, (uintptr_t) place);
	uintptr_t	end = TYPEALIGN(page_size, (uintptr_t) (place + 1));
	Place		found = {.address = (uintptr_t) place,.page_size = page_size};

	if (DEBUG_LIMIT(seam_fails, 0))
		return "it was to fail";
	(void) dl_iterate_phdr(find_protection, &found);
	if (!found.is_known)
		return "dl_iterate_phdr tells of no program that has it";
	if ((found.protection & PROT_WRITE) == 0 &&
		mprotect((void *) start, end - start, found.protection | PROT_WRITE) != 0)
		return psprintf("mprotect failed: %s", strerror(errno));
	*place = value;
	if ((found.protection & PROT_WRITE) == 0 &&
		mprotect((void *) start, end - start, found.protection) != 0)
		ereport(WARNING,
				(errmsg("could not protect memory again after changing it: %m")));
	return NULL;
}

/*
 * find_protection
 *		A callback of dl_iterate_phdr: find the protection of a place in memory, if the
 *		place is in this program or library.
 *
 * The headers say how the parts of the program were mapped, and which pages the loader
 * protected after it had filled in addresses.  A pointer is aligned, so it can't be in
 * two parts.
 */
static int
find_protection(struct dl_phdr_info *program, size_t size, void *arg)
{
	Place	   *place = arg;

	for (int i = 0; i < program->dlpi_phnum; i++)
	{
		const		ElfW(Phdr) * part = &program->dlpi_phdr[i];
		uintptr_t	start = program->dlpi_addr + part->p_vaddr;

		if (part->p_type != PT_LOAD || place->address < start ||
			place->address - start >= part->p_memsz)
			continue;
		place->protection = ((part->p_flags & PF_R) != 0 ? PROT_READ : 0) |
			((part->p_flags & PF_W) != 0 ? PROT_WRITE : 0) |
			((part->p_flags & PF_X) != 0 ? PROT_EXEC : 0);
		place->is_known = true;
	}
	for (int i = 0; i < program->dlpi_phnum && place->is_known; i++)
	{
		const		ElfW(Phdr) * part = &program->dlpi_phdr[i];
		uintptr_t	start = program->dlpi_addr + part->p_vaddr;

		/* the loader doesn't protect a last page that is covered in part */
		if (part->p_type == PT_GNU_RELRO && place->address >= start &&
			place->address < TYPEALIGN_DOWN(place->page_size, start + part->p_memsz))
			place->protection = PROT_READ;
	}
	return place->is_known;
}
