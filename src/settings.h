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

extern bool cyclone_enabled;

extern void settings_init(void);

#endif							/* CYCLONE_SETTINGS_H */
