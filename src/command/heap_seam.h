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

extern void heap_seam_init(void);
extern bool heap_seam_is_set(void);

#endif							/* CYCLONE_HEAP_SEAM_H */
