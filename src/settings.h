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

/* What VACUUM FULL does if disk space may not suffice */
typedef enum DiskSpaceCheck
{
	DISK_SPACE_OFF,
	DISK_SPACE_WARNING,
	DISK_SPACE_ERROR,
} DiskSpaceCheck;

extern int	cyclone_check_disk_space;
extern bool cyclone_enabled;

extern void settings_init(void);

#endif							/* CYCLONE_SETTINGS_H */
