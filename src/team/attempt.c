/*-------------------------------------------------------------------------
 *
 * attempt.c
 *	  Taking shared memory that may not be available.
 *
 * The server's functions for dynamic shared memory raise an error if there is
 * no memory left, or no descriptor.  A team without it, or with less of it,
 * does the work all the same, so here such an error becomes an answer.
 *
 * That is usually a subtransaction's work, which parallel mode forbids.  An
 * attempt leaves little behind, and all of it is cleared away here.  Its resources
 * belong to a resource owner of its own, which is released as by an abort.  Its
 * locks are lightweight ones, and as its caller held none, all can be released.  It
 * changes no data.  So it must be called from the main path, never from a callback.
 *
 * The resources of a successful attempt belong to that resource owner, too, which
 * is the current one's child and lasts as long.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "team/attempt.h"

typedef struct SegmentAttempt
{
	Size		size;			/* 0: attach */
	dsm_handle	handle;
	dsm_segment *segment;
} SegmentAttempt;

static dsm_segment *attempt_segment(SegmentAttempt *arg, char **failure);
static void open_shared_segment(void *arg);

/*
 * attempt
 *		Call a routine; return false, and why in *failure, if it raised an error
 *		for lack of memory, descriptors or the like.
 *
 * undo, which may be NULL, is called then, before all that the routine had
 * taken is given back.
 */
bool
attempt(void (*routine) (void *), void (*undo) (void *), void *arg, char **failure)
{
	ResourceOwner caller = CurrentResourceOwner;
	ResourceOwner owner = ResourceOwnerCreate(caller, "pg_cyclone attempt");
	MemoryContext context = CurrentMemoryContext;
	volatile bool done = false;

	/* so this process holds no lightweight locks */
	Assert(InterruptHoldoffCount == 0 && CritSectionCount == 0);

	CurrentResourceOwner = owner;
	PG_TRY();
	{
		routine(arg);
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		CurrentResourceOwner = caller;
		if (ERRCODE_TO_CATEGORY(geterrcode()) != ERRCODE_INSUFFICIENT_RESOURCES)
			PG_RE_THROW();

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		LWLockReleaseAll();
		if (undo != NULL)
			undo(arg);
		ResourceOwnerRelease(owner, RESOURCE_RELEASE_BEFORE_LOCKS, false, false);
		ResourceOwnerRelease(owner, RESOURCE_RELEASE_LOCKS, false, false);
		ResourceOwnerRelease(owner, RESOURCE_RELEASE_AFTER_LOCKS, false, false);
		ResourceOwnerDelete(owner);
		*failure = pstrdup(error->message);
		FreeErrorData(error);
	}
	PG_END_TRY();

	CurrentResourceOwner = caller;
	return done;
}

/*
 * attempt_create_segment
 *		Create a segment of shared memory; return NULL, and why in *failure, if none is
 *		available.
 */
dsm_segment *
attempt_create_segment(Size size, char **failure)
{
	SegmentAttempt arg = {.size = size};

	Assert(size > 0);
	return attempt_segment(&arg, failure);
}

/*
 * attempt_attach_segment
 *		Map a segment that another process holds; return NULL, and why in
 *		*failure, if that can't be done.
 */
dsm_segment *
attempt_attach_segment(dsm_handle handle, char **failure)
{
	SegmentAttempt arg = {.handle = handle};

	Assert(handle != DSM_HANDLE_INVALID);
	return attempt_segment(&arg, failure);
}

/* attempt_segment -- one or the other. */
static dsm_segment *
attempt_segment(SegmentAttempt *arg, char **failure)
{
	return attempt(open_shared_segment, NULL, arg, failure) ? arg->segment : NULL;
}

/* open_shared_segment -- the part of it that may raise an error. */
static void
open_shared_segment(void *arg)
{
	SegmentAttempt *segment = arg;

	if (segment->size > 0)
		segment->segment = dsm_create(segment->size, 0);
	else
		segment->segment = dsm_attach(segment->handle);
	if (segment->segment == NULL)
		elog(ERROR, "shared memory segment %u does not exist", segment->handle);
}
