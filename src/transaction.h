/*-------------------------------------------------------------------------
 *
 * transaction.h
 *	  The transactions that a VACUUM consists of, and subtransactions that may fail.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_TRANSACTION_H
#define CYCLONE_TRANSACTION_H

#include "utils/rel.h"

/* The user and the settings before become_owner */
typedef struct SavedUser
{
	Oid			userid;
	int			sec_context;
	int			nestlevel;
} SavedUser;

/* A transaction with a snapshot; begun outside of any. */
extern void transaction_begin(bool full);
extern void transaction_end(void);

/*
 * Returns the error, in the caller's memory context, or NULL.  Interrupts that came with the
 * error are served later.
 */
extern ErrorData *transaction_try(void (*routine) (void *), void *arg);
extern bool transaction_error_is_about_data(const ErrorData *error);

/* In a transaction.  After an error its end undoes this, so become_user_again isn't called. */
extern void become_owner(Relation rel, SavedUser *saved);
extern void become_user_again(const SavedUser *saved);

#endif							/* CYCLONE_TRANSACTION_H */
