/*-------------------------------------------------------------------------
 *
 * horizon.h
 *	  What keeps VACUUM from removing dead rows: sessions, slots and standbys.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_HORIZON_H
#define CYCLONE_HORIZON_H

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/rel.h"

/* Whose needs decide whether a dead row of a table can be removed */
typedef enum HorizonScope
{
	SCOPE_OWN,					/* a temporary table: nobody else's */
	SCOPE_DATABASE,				/* those of this database, and of standbys */
	SCOPE_CATALOG,				/* the same, and those of logical decoding */
	SCOPE_SHARED,				/* everybody's */
} HorizonScope;

typedef enum HolderKind
{
	HOLDER_SESSION,				/* any process in a transaction */
	HOLDER_PREPARED,
	HOLDER_SLOT,
	HOLDER_STANDBY,				/* by hot_standby_feedback, without a slot */
} HolderKind;

/* A holder; what the viewer may not see is NULL, 0 or invalid */
typedef struct HorizonHolder
{
	HolderKind	kind;
	int			pid;			/* of a slot, of who uses it; 0: none */
	Oid			database;		/* invalid: of none */
	bool		everywhere;		/* holds tables of all databases? */
	Oid			user;
	const char *name;			/* of the slot or the prepared transaction */
	bool		logical;		/* a slot for logical decoding? */
	const char *backend_type;
	const char *application;
	const char *state;
	const char *query;
	TimestampTz since;			/* 0: not known */
	TransactionId xmin;			/* the oldest it may need, if any */
	TransactionId catalog_xmin; /* of catalogs */
	bool		may_hold_multixact;
} HorizonHolder;

/*
 * Return all holders, the oldest first, as this role may see them.  Like
 * pg_stat_activity, it hides the details of another user's session.  The caller's own
 * session is among them only in a transaction block: what a single statement holds ends
 * with it.  In a transaction; the list is in the current context.
 */
extern List *horizon_holders(Oid viewer);

/*
 * Return the oldest transaction ID that a holder keeps from becoming removable, in
 * tables of this scope in this database; an invalid one if there is none.
 */
extern TransactionId horizon_of(const HorizonHolder *holder, HorizonScope scope,
								Oid database);

/*
 * Describe the holder that holds back the rows of a table the longest.  NULL if no
 * holder needs what was deleted at cutoff or later: then a new VACUUM gets further
 * than that cutoff.  For messages to the client, or to the server's log: it tells what
 * the session's user may see, whichever user owns the table.  In a transaction.
 */
extern char *horizon_describe_oldest(Relation rel, TransactionId cutoff);

/* The same, as a line of a report, without the line's end. */
extern char *horizon_line(Relation rel, TransactionId cutoff);

#endif							/* CYCLONE_HORIZON_H */
