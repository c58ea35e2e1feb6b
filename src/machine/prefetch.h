/*-------------------------------------------------------------------------
 *
 * prefetch.h
 *	  Asking the processor for memory before it is needed.
 *
 * A vacuum looks at each byte of memory once, so much of its time is spent
 * waiting for memory.  (Not to be confused with reading ahead from disk, which
 * the read streams do.)
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PREFETCH_H
#define CYCLONE_PREFETCH_H

#include "storage/bufmgr.h"

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address)	__builtin_prefetch(address)
#else
#define PREFETCH(address)	((void) (address))
#endif

/* As long as the cache lines of most processors */
#define CACHE_LINE_BYTES	64

/*
 * prefetch_page -- a pinned page will be read whole soon; Invalid is none.
 *
 * GCC takes a function that does nothing else for one without effect, and
 * would leave out a call of it.
 */
static pg_attribute_always_inline void
prefetch_page(Buffer buffer)
{
	if (BufferIsValid(buffer))
	{
		const char *page = (const char *) BufferGetPage(buffer);

		for (int i = 0; i < BLCKSZ; i += CACHE_LINE_BYTES)
			PREFETCH(page + i);
	}
}

#endif							/* CYCLONE_PREFETCH_H */
