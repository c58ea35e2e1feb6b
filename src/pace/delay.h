/*-------------------------------------------------------------------------
 *
 * delay.h
 *	  Cost-based delay, with one budget for all processes of a vacuum.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_DELAY_H
#define CYCLONE_DELAY_H

extern void delay_begin(void);
extern void delay_update(void);
extern void delay_point(void);

#endif							/* CYCLONE_DELAY_H */
