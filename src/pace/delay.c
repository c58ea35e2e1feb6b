/*-------------------------------------------------------------------------
 *
 * delay.c
 *	  Cost-based delay, with one budget for all processes of a vacuum.
 *
 * vacuum_cost_limit and vacuum_cost_delay say how much a vacuum may cost in a
 * time.  The server's delay point makes each process of a parallel vacuum
 * sleep in proportion to its own cost, so all of them together cost as many
 * times the budget as there are processes at work.  That was of no great
 * importance while only indexes were vacuumed in parallel; here it would be.
 * So each process sleeps longer, by that factor.  The price is that a
 * throttled vacuum gains nothing from workers, as it is meant to.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/vacuum.h"
#include "miscadmin.h"

#include "compat.h"
#include "pace/delay.h"

/* vacuum_cost_delay as it would be for one process, in ms */
static double base_delay = 0;

/*
 * delay_begin
 *		This process begins to vacuum a table: take over the settings.
 */
void
delay_begin(void)
{
	VacuumUpdateCosts();
	base_delay = vacuum_cost_delay;
}

/*
 * delay_update
 *		Adapt to the number of processes that are at work now.
 */
void
delay_update(void)
{
	uint32		nprocesses = VacuumActiveNWorkers == NULL ? 1 :
		pg_atomic_read_u32(VacuumActiveNWorkers);

	vacuum_cost_delay = base_delay * Max(nprocesses, 1);
}

/*
 * delay_point
 *		Sleep if it is time to, and serve interrupts.  No lock may be held.
 */
void
delay_point(void)
{
	if (unlikely(VacuumCostActive))
		delay_update();
	compat_vacuum_delay_point();
}
