/*-------------------------------------------------------------------------
 *
 * attempt.h
 *	  Taking shared memory that may not be available.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_ATTEMPT_H
#define CYCLONE_ATTEMPT_H

#include "storage/dsm.h"

/*
 * The caller holds no lightweight lock and is in no critical section.  Errors other than
 * those for lack of memory, descriptors and the like are raised.
 */
extern bool attempt(void (*routine) (void *), void (*undo) (void *), void *arg,
					char **failure);
extern dsm_segment *attempt_create_segment(Size size, char **failure);
extern dsm_segment *attempt_attach_segment(dsm_handle handle, char **failure);

#endif							/* CYCLONE_ATTEMPT_H */
