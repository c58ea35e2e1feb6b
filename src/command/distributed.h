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

extern bool distributed_is_for_other(List *rels, const VacuumOptions *options);
extern bool distributed_is_for_cluster(List *rels, const VacuumOptions *options, List **here);
extern bool distributed_has_cluster(void);
extern bool distributed_is_in_cluster(Oid relid);
extern bool distributed_table_is_for_other(Oid relid, const char **is_what);
extern bool distributed_other_ends_vacuums(void);

#endif							/* CYCLONE_DISTRIBUTED_H */
