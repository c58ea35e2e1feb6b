/*-------------------------------------------------------------------------
 *
 * citus.h
 *	  What we ask of Citus.
 *
 * Results are allocated in the memory context of the caller.  All functions but
 * citus_check_order run inside a transaction, and none leaves a snapshot behind.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_CITUS_H
#define CYCLONE_CITUS_H

#include "nodes/pg_list.h"

/* A server that takes part, as Citus names it. */
typedef struct CitusNode
{
	char	   *name;
	int			port;
	bool		is_active;
} CitusNode;

/* A shard, where it is. */
typedef struct CitusPlacement
{
	CitusNode	node;			/* name is NULL if the shard is nowhere */
	bool		is_here;		/* on this server? */
	Oid			relid;			/* of which table */
	int64		shardid;
	char	   *shard;			/* its name there, with its schema, quoted */
} CitusPlacement;

/* What has become of a command. */
typedef struct CitusAnswer
{
	bool		success;
	char	   *result;			/* its result, or the error's text; not NULL */
} CitusAnswer;

/*
 * citus_check_order
 *		Warn, in the postmaster, if Citus is to be loaded after us: it refuses to come
 *		after a library that has hooks.
 */
extern void citus_check_order(void);

/* citus_can_run -- is there a Citus that runs commands on nodes in the way that we know? */
extern bool citus_can_run(void);

/*
 * citus_placements
 *		Find the shards of these tables: a CitusPlacement for each node that has a
 *		shard, with those of one node together.
 *
 * A shard that is on no node that takes part is in the list, too; its node has no
 * name.  It sees all that is committed when it is called, whatever the transaction's
 * snapshot is.
 */
extern List *citus_placements(List *relids);

/* citus_nodes -- find the nodes: a CitusNode for each. */
extern List *citus_nodes(void);

/*
 * citus_run
 *		Run a command on each of these nodes, side by side, and return a CitusAnswer
 *		for each, in their order.
 *
 * nodes are CitusNodes, at least one; commands are strings, one for each node.
 */
extern List *citus_run(List *nodes, List *commands);

/*
 * citus_limit_connecting
 *		Have Citus give up on a node that it can't connect to within this time, or the
 *		nearest one that it allows, until the caller's level of settings ends.
 */
extern void citus_limit_connecting(int ms);

/* citus_is_same_node -- are these the same node?  Two without a name are. */
extern bool citus_is_same_node(const CitusNode *one, const CitusNode *other);

/* citus_add_node -- add a node to a list, unless it is there. */
extern List *citus_add_node(List *nodes, const CitusNode *node);

#endif							/* CYCLONE_CITUS_H */
