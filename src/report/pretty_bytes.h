/*-------------------------------------------------------------------------
 *
 * pretty_bytes.h
 *	  Sizes in messages.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PRETTY_BYTES_H
#define CYCLONE_PRETTY_BYTES_H

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

/* pretty_bytes -- a size with a unit, allocated in the current context. */
static inline char *
pretty_bytes(int64 bytes)
{
	return TextDatumGetCString(DirectFunctionCall1(pg_size_pretty, Int64GetDatum(bytes)));
}

#endif							/* CYCLONE_PRETTY_BYTES_H */
