/*-------------------------------------------------------------------------
 *
 * audit_mark.c
 *	  Has an audit failed on the table in hand?
 *
 * Whoever catches the error of a VACUUM must know whether it is an audit's.  The error
 * doesn't tell: a function of the table's owner may raise any text with any code, and
 * an error of a worker comes as text.  So there is a mark for each process in shared
 * memory, which only the code of audits sets; that of a worker sets its leader's, too.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "audit_mark.h"

/* By the process's number */
static pg_atomic_uint32 *audit_marks = NULL;

/* audit_mark_count -- how many processes the server may have. */
static int
audit_mark_count(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

/* audit_mark_shmem_request -- see shared_memory.c. */
void
audit_mark_shmem_request(void)
{
	RequestAddinShmemSpace(mul_size(audit_mark_count(), sizeof(pg_atomic_uint32)));
}

/* audit_mark_shmem_init -- see shared_memory.c. */
void
audit_mark_shmem_init(void)
{
	bool		found;

	audit_marks = ShmemInitStruct("pg_cyclone audit marks",
								  mul_size(audit_mark_count(), sizeof(pg_atomic_uint32)), &found);
	for (int i = 0; !found && i < audit_mark_count(); i++)
		pg_atomic_init_u32(&audit_marks[i], 0);
}

/* audit_mark_forget -- see audit_mark.h. */
void
audit_mark_forget(void)
{
	Assert(MyProc->lockGroupLeader == NULL || MyProc->lockGroupLeader == MyProc);
	pg_atomic_write_u32(&audit_marks[MyProcNumber], 0);
}

/* audit_mark_set -- see audit_mark.h. */
void
audit_mark_set(void)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;

	pg_atomic_write_u32(&audit_marks[MyProcNumber], 1);
	if (leader != NULL)
		pg_atomic_write_u32(&audit_marks[GetNumberFromPGProc(leader)], 1);
}

/* audit_mark_is_set -- see audit_mark.h. */
bool
audit_mark_is_set(void)
{
	return audit_marks != NULL && pg_atomic_read_u32(&audit_marks[MyProcNumber]) != 0;
}
