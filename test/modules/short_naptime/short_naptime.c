/*-------------------------------------------------------------------------
 *
 * short_naptime.c
 *	  Autovacuum comes as often as it can.
 *
 * autovacuum_naptime is a second at least.  With 0 the launcher starts a worker each 110 ms,
 * whatever the files say.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/* _PG_init -- lower the setting's bound, then the setting. */
void
_PG_init(void)
{
	struct config_generic *naptime = find_option("autovacuum_naptime", false, false, ERROR);

#if PG_VERSION_NUM >= 190000
	naptime->_int.min = 0;
#else
	((struct config_int *) naptime)->min = 0;
#endif
	SetConfigOption("autovacuum_naptime", "0", PGC_POSTMASTER, PGC_S_OVERRIDE);
}
