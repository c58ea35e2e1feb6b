/*-------------------------------------------------------------------------
 *
 * audit_mark.h
 *	  Has an audit failed on the table in hand?
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_AUDIT_MARK_H
#define CYCLONE_AUDIT_MARK_H

/*
 * audit_mark_forget is called when this process comes to a table, and leads no workers.
 * audit_mark_set is called where an audit fails, in a worker, too.  audit_mark_is_set says
 * whether that was so since then, in this process or in a worker that it leads.  None of
 * them raises an error or takes a lock.
 */
extern void audit_mark_shmem_request(void);
extern void audit_mark_shmem_init(void);
extern void audit_mark_forget(void);
extern void audit_mark_set(void);
extern bool audit_mark_is_set(void);

#endif							/* CYCLONE_AUDIT_MARK_H */
