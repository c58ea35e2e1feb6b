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

/* The most quantities that are measured on a page */
#define MAX_QUANTITIES	14

typedef struct PageSample PageSample;

/* A quantity's total over all pages */
typedef struct Total
{
	double		value;
	double		standard_error;
} Total;

/*
 * Prepare to read at most most_pages pages, one at least, from first_block to the end.
 * The caller has a lock on the relation that keeps it from being truncated.
 */
extern PageSample *page_sample_begin(Relation rel, BlockNumber first_block,
									 uint32 most_pages, pg_prng_state *prng);

/*
 * Return the next page, pinned, or InvalidBuffer after the last one.  After each page
 * comes page_sample_measured, before the next call.
 */
extern Buffer page_sample_next(PageSample *sample);

/* Take note of what was found on a page, and give its pin back. */
extern void page_sample_measured(PageSample *sample, Buffer buffer,
								 const double *quantities, int nquantities);

/* Return how many pages were measured. */
extern BlockNumber page_sample_size(const PageSample *sample);

/* Return how many pages the totals are about. */
extern BlockNumber page_sample_of(const PageSample *sample);

/*
 * Estimate a quantity's total over all pages, when all pages of the sample have been
 * measured.
 */
extern Total page_sample_total(const PageSample *sample, int quantity);

/* Free the sample and give back what it has pinned. */
extern void page_sample_end(PageSample *sample);

#endif							/* CYCLONE_PAGE_SAMPLE_H */
