/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The configuration parameters, all named cyclone.*.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_SETTINGS_H
#define CYCLONE_SETTINGS_H

#include "utils/guc.h"

/* The most rows that cyclone.history may have */
#define HISTORY_MAX_SIZE	20000

/* cyclone.preserve_page_cache */
typedef enum PreservePageCache
{
	PRESERVE_OFF,
	PRESERVE_ON,
	PRESERVE_AUTO				/* where what VACUUM reads is more than the
								 * unused memory holds */
} PreservePageCache;

extern double cyclone_audit;	/* share of pages */
extern bool cyclone_autovacuum;
extern int	cyclone_autovacuum_max_parallel_workers;
extern char *cyclone_databases; /* patterns: see scope.c */
extern int	cyclone_history_size;	/* rows */
extern int	cyclone_index_wait; /* ms */
#define MIN_FREE_DISK_DEFAULT	"5%"
extern int	cyclone_log_min_duration;	/* ms; -1: log nothing */
extern int	cyclone_max_replica_lag;	/* ms; 0: no bound */
extern int	cyclone_max_wal_rate;	/* kB a second; 0: no bound */
extern double cyclone_min_free_disk;	/* see settings_parse_min_free_disk */
extern int	cyclone_preserve_page_cache;	/* PreservePageCache */
extern bool cyclone_system_calls;
extern char *cyclone_tables;	/* patterns */

/*
 * Is cyclone.enabled on in this session, and not "never" in the files?  The latter is known
 * at once when the postmaster has read them.
 */
extern bool settings_enabled(void);
extern void settings_shmem_request(void);
extern void settings_shmem_init(void);

/*
 * settings_note_files comes before any parameter is defined: it notes which ones the files
 * have, for the case that their values turn out to be invalid.  settings_init defines the
 * parameters and reserves their prefix.  It is called once, when the library is loaded,
 * after all others have defined theirs.  settings_parse_min_free_disk makes of a text a size
 * in bytes, or a share as a number below 0.  It returns false if the text is invalid.
 */
extern void settings_note_files(void);
extern void settings_init(void);
extern bool settings_parse_min_free_disk(const char *value, double *result);

#endif							/* CYCLONE_SETTINGS_H */
