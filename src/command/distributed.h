/*-------------------------------------------------------------------------
 *
 * distributed.h
 *	  Tables that another library distributes or divides.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DISTRIBUTED_H
#define CYCLONE_DISTRIBUTED_H

#include "command/options.h"

/*
 * distributed_is_for_other
 *		Must a VACUUM or REPACK of these relations, or of the whole database if there
 *		are none, go to another library?  options are the statement's.
 *
 * The statement is a REPACK, a VACUUM with FULL, INPLACE or ADAPTIVE_DELAY, or one that an
 * audit has ended.  Names are looked up without a lock, and names that don't exist are
 * skipped: distributed_table_is_for_other decides on a table that is locked.  Raises an error
 * if the other library can't do what the statement says.
 */
extern bool distributed_is_for_other(List *rels, const VacuumOptions *options);

/*
 * distributed_table_is_for_other
 *		Is a table, on which the caller has a lock, another library's?
 *
 * If so, *is_what is what the library has made of it, for a message.
 */
extern bool distributed_table_is_for_other(Oid relid, const char **is_what);

/*
 * distributed_other_ends_vacuums
 *		Has this database a library whose hook runs VACUUMs without calling the hooks
 *		behind it?
 */
extern bool distributed_other_ends_vacuums(void);

#endif							/* CYCLONE_DISTRIBUTED_H */
