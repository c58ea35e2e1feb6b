/*-------------------------------------------------------------------------
 *
 * cache_line.h
 *	  Asking the processor for memory before it is needed.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CACHE_LINE_H
#define CYCLONE_CACHE_LINE_H

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address)	__builtin_prefetch(address)
#else
#define PREFETCH(address)	((void) (address))
#endif

/* As long as the cache lines of most processors */
#define CACHE_LINE_BYTES	64

#endif							/* CYCLONE_CACHE_LINE_H */
