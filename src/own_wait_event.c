/*-------------------------------------------------------------------------
 *
 * own_wait_event.c
 *	  Wait events with names of our own.
 *
 * The server has room for 127 names, of all libraries together, and raises an error when
 * they are used up, with a lock held.  No VACUUM fails for that: it waits under the name
 * that the server has for all extensions.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "own_wait_event.h"

/* own_wait_event -- see own_wait_event.h. */
uint32
own_wait_event(uint32 *event, const char *name)
{
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;

	Assert(CritSectionCount == 0);
	if (likely(*event != 0))
		return *event;

	PG_TRY();
	{
		*event = WaitEventExtensionNew(name);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
		/* the error has set them to 0 */
		InterruptHoldoffCount = holdoff;
		QueryCancelHoldoffCount = cancel_holdoff;
		if (LWLockHeldByMe(WaitEventCustomLock))
		{
			HOLD_INTERRUPTS();
			LWLockRelease(WaitEventCustomLock);
		}
		*event = PG_WAIT_EXTENSION;
	}
	PG_END_TRY();
	return *event;
}
