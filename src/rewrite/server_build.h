/*-------------------------------------------------------------------------
 *
 * server_build.h
 *	  Having the server build indexes, if need be without workers.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SERVER_BUILD_H
#define CYCLONE_SERVER_BUILD_H

extern void server_build(void (*routine) (void *), void *arg);

#endif							/* CYCLONE_SERVER_BUILD_H */
