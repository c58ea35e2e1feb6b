/*-------------------------------------------------------------------------
 *
 * heap_seam.h
 *	  Where the server asks heap to be vacuumed.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_HEAP_SEAM_H
#define CYCLONE_HEAP_SEAM_H

/*
 * heap_seam_init
 *		Have the engine vacuum heap's tables.
 *
 * Called once, in the postmaster, while the library is preloaded.  If it isn't possible,
 * this warns and changes nothing.
 */
extern void heap_seam_init(void);

/* heap_seam_is_set -- do VACUUMs of heap come to the engine, if settings allow it? */
extern bool heap_seam_is_set(void);

#endif							/* CYCLONE_HEAP_SEAM_H */
