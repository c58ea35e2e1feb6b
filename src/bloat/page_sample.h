/*-------------------------------------------------------------------------
 *
 * page_sample.h
 *	  Totals over all pages of a relation, estimated from some of them.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_PAGE_SAMPLE_H
#define CYCLONE_PAGE_SAMPLE_H

#include "common/pg_prng.h"
#include "storage/buf.h"
#include "utils/rel.h"

/* As many quantities may be measured on a page */
#define MAX_QUANTITIES	7

typedef struct PageSample PageSample;

/* What a quantity comes to over all pages */
typedef struct Total
{
	double		value;
	double		standard_error;
} Total;

extern PageSample *page_sample_begin(Relation rel, BlockNumber first_block,
									 uint32 most_pages, pg_prng_state *prng);
extern Buffer page_sample_next(PageSample *sample);
extern void page_sample_measured(PageSample *sample, Buffer buffer,
								 const double *quantities, int nquantities);
extern BlockNumber page_sample_size(const PageSample *sample);
extern BlockNumber page_sample_of(const PageSample *sample);
extern Total page_sample_total(const PageSample *sample, int quantity);
extern void page_sample_end(PageSample *sample);

#endif							/* CYCLONE_PAGE_SAMPLE_H */
