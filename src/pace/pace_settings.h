/*-------------------------------------------------------------------------
 *
 * pace_settings.h
 *	  The settings that the pace of a vacuum depends on.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PACE_SETTINGS_H
#define CYCLONE_PACE_SETTINGS_H

#include "utils/guc.h"

/* Special values of a latency target; others are in ms. */
#define LATENCY_TARGET_OFF	0.0
#define LATENCY_TARGET_AUTO (-1.0)

typedef struct PaceSettings
{
	double		cost_delay;		/* ms */
	int			cost_limit;
	int			page_hit;
	int			page_miss;
	int			page_dirty;
	double		latency_target; /* ms, or one of the special values */
	double		latency_percentile;
	int			latency_of;		/* LatencyOf */
	Oid			cluster_user;	/* who sent it from the cluster's coordinator;
								 * InvalidOid: nobody */
} PaceSettings;

/* Those of the server's parameters that a command changes for its duration */
typedef struct PaceParameters
{
	double		cost_delay;
	int			cost_limit;
	int			page_hit;
	int			page_miss;
	int			page_dirty;
	double		autovacuum_cost_delay;
	int			autovacuum_cost_limit;
} PaceParameters;

extern double cyclone_latency_percentile;
extern int	cyclone_latency_of;
extern const struct config_enum_entry cyclone_latency_of_options[];

extern bool latency_target_parse(const char *value, double *target, const char **problem);
extern double latency_target_setting(void);
extern void pace_settings_define_autovacuum_target(void);
extern void pace_settings_define_target(void);

extern void pace_settings_current(PaceSettings *settings);
extern void pace_settings_save(PaceParameters *saved);
extern void pace_settings_restore(const PaceParameters *saved);
extern bool pace_settings_rebalance(PaceSettings *settings);
extern void pace_settings_reread(PaceSettings *settings);

#endif							/* CYCLONE_PACE_SETTINGS_H */
