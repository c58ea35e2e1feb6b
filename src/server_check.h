/*-------------------------------------------------------------------------
 *
 * server_check.h
 *	  Does the library fit the server that has loaded it?
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SERVER_CHECK_H
#define CYCLONE_SERVER_CHECK_H

/*
 * server_check is called once, in the postmaster, while the library is preloaded, and
 * warns.  What the library offers to SQL begins with server_refuse_if_unfit, which raises an
 * error in a server that the library doesn't fit.
 */
extern void server_check(void);
extern bool server_fits(void);
extern void server_refuse_if_unfit(const char *what);

#endif							/* CYCLONE_SERVER_CHECK_H */
