/*-------------------------------------------------------------------------
 *
 * cluster_answer.h
 *	  A VACUUM on several nodes, and what a node answers.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CLUSTER_ANSWER_H
#define CYCLONE_CLUSTER_ANSWER_H

#include "lib/stringinfo.h"
#include "nodes/pg_list.h"

#include "cluster/citus.h"

/* A table, and the columns to analyze, as in a statement */
typedef struct ClusterTable
{
	Oid			relid;
	List	   *columns;		/* Strings; NIL for all */
} ClusterTable;

/* A shard on a node, and what has become of it there */
typedef struct ClusterShard
{
	const CitusPlacement *placement;
	bool		is_late;		/* found there in a later round only? */
	const char *status;			/* NULL before the node has answered */
	int64		before;			/* total sizes, -1 if not known */
	int64		after;
	const char *reason;			/* its last warning or error */
} ClusterShard;

typedef struct ClusterVacuum
{
	MemoryContext context;
	bool		is_statement;	/* a VACUUM, which may end transactions? */
	bool		skips_here;		/* leave out shards on this server? */
	bool		is_verbose;
	char	   *options;		/* as in a statement, may be empty */
	List	   *tables;			/* ClusterTables */
	List	   *shards;			/* ClusterShards, in the order of their rounds */
	List	   *nodes;			/* CitusNodes to which a command was sent */
	List	   *failed;			/* the nodes that had an error */
	StringInfoData failures;
} ClusterVacuum;

/*
 * cluster_answer_take
 *		Note what a node's answer says of these shards, all of that node, and pass
 *		its messages on.
 *
 * A failure of the node is a warning, and is noted in vacuum->failed: no error is
 * raised.  There is at least one shard, in the order in which the command has them.
 */
extern void cluster_answer_take(ClusterVacuum *vacuum, List *shards, const CitusAnswer *answer);

#endif							/* CYCLONE_CLUSTER_ANSWER_H */
