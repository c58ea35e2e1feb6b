/*-------------------------------------------------------------------------
 *
 * cluster_pace.h
 *	  One latency target for all nodes that a VACUUM is sent to.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CLUSTER_PACE_H
#define CYCLONE_CLUSTER_PACE_H

#include "nodes/pg_list.h"

extern void cluster_pace_begin(List *nodes, double latency_target);
extern void cluster_pace_end(bool failed, bool verbose);

#endif							/* CYCLONE_CLUSTER_PACE_H */
