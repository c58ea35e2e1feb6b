/*-------------------------------------------------------------------------
 *
 * citus.h
 *	  What we ask of Citus.
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
	char	   *result;			/* its result, or the error's text */
} CitusAnswer;

extern void citus_check_order(void);
extern bool citus_can_run(void);
extern List *citus_placements(List *relids);
extern List *citus_nodes(void);
extern List *citus_run(List *nodes, List *commands);
extern void citus_limit_connecting(int ms);
extern bool citus_is_same_node(const CitusNode *one, const CitusNode *other);
extern List *citus_add_node(List *nodes, const CitusNode *node);

#endif							/* CYCLONE_CITUS_H */
