/*-------------------------------------------------------------------------
 *
 * page_sample.c
 *	  Totals over all pages of a relation, estimated from some of them.
 *
 * One page of each stratum of adjacent blocks is read, at random.  What the free space map
 * and the visibility map know of the others corrects the estimate.  README.md has the
 * statistics.
 *
 * Reads at most the number of pages that the caller gives, and at most the pages of
 * the maps that cover the relation (1 of about 4,000).  Nothing is written.  One pin is
 * held for the caller, and those of the read stream; no lock.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/visibilitymap.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/freespace.h"
#include "storage/lmgr.h"
#include "storage/read_stream.h"

#include "bloat/page_sample.h"
#include "compat.h"
#include "debug_point.h"

/* About how many pages the maps are asked for each page read */
#define LOOKUPS_PER_PAGE	16

/* What the maps say of a page */
#define MAP_FREE_SPACE		0	/* share of the page */
#define MAP_ALL_VISIBLE		1	/* 0 or 1; always 0 for indexes */
#define NMAPS				2

/* Smaller samples can't tell what the maps are worth */
#define MIN_PAGES_FOR_MAPS	50

struct PageSample
{
	/* what is sampled */
	Relation	rel;
	BlockNumber first_block;
	BlockNumber nblocks;		/* from the first on */
	BlockNumber nstrata;
	/* two, as caches decide how far reads are ahead of the looks into maps */
	pg_prng_state read_prng;
	pg_prng_state lookup_prng;

	/* reading */
	ReadStream *stream;
	BufferAccessStrategy strategy;
	Buffer		vmbuffer;
	BlockNumber next_read;		/* stratum of the next page to be read */
	BlockNumber next_measured;	/* stratum of the next page to be measured */

	/* sums over the strata, weighted with their blocks */
	double		quantity_sum[MAX_QUANTITIES];
	double		deviation_sum[NMAPS];	/* of a stratum from its page */

	/* sums of products of differences between pages of neighbouring strata */
	double		previous_quantity[MAX_QUANTITIES];
	double		previous_answer[NMAPS];
	double		quantity_squares[MAX_QUANTITIES];
	double		quantity_by_answer[MAX_QUANTITIES][NMAPS];
	double		answer_products[NMAPS][NMAPS];
};

static BlockNumber next_block(ReadStream *stream, void *callback_data,
							  void *per_buffer_data);
static BlockNumber stratum_start(const PageSample *sample, BlockNumber stratum);
static void ask_maps_of_stratum(PageSample *sample, BlockNumber stratum,
								double *answers);
static void ask_maps(PageSample *sample, BlockNumber block, double *answers);
static void worth_of_maps(const PageSample *sample, int quantity, double *worth);

/* page_sample_begin -- see page_sample.h. */
PageSample *
page_sample_begin(Relation rel, BlockNumber first_block, uint32 most_pages,
				  pg_prng_state *prng)
{
	PageSample *sample = palloc0_object(PageSample);
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);

	Assert(CheckRelationLockedByMe(rel, AccessShareLock, true));
	Assert(most_pages > 0);

	sample->rel = rel;
	sample->first_block = first_block;
	sample->nblocks = nblocks > first_block ? nblocks - first_block : 0;
	sample->nstrata = Min(sample->nblocks, most_pages);
	pg_prng_seed(&sample->read_prng, pg_prng_uint64(prng));
	pg_prng_seed(&sample->lookup_prng, pg_prng_uint64(prng));
	sample->vmbuffer = InvalidBuffer;
	sample->strategy = GetAccessStrategy(BAS_BULKREAD);
	sample->stream = read_stream_begin_relation(COMPAT_READ_STREAM_BATCHING,
												sample->strategy, rel, MAIN_FORKNUM,
												next_block, sample, 0);
	return sample;
}

/* page_sample_next -- see page_sample.h. */
Buffer
page_sample_next(PageSample *sample)
{
	CHECK_FOR_INTERRUPTS();
	return read_stream_next_buffer(sample->stream, NULL);
}

/* page_sample_measured -- see page_sample.h. */
void
page_sample_measured(PageSample *sample, Buffer buffer,
					 const double *quantities, int nquantities)
{
	BlockNumber stratum = sample->next_measured++;
	double		nblocks = stratum_start(sample, stratum + 1) - stratum_start(sample, stratum);
	double		answers[NMAPS];
	double		averages[NMAPS];

	Assert(BufferIsValid(buffer));
	Assert(nquantities > 0 && nquantities <= MAX_QUANTITIES);
	Assert(stratum < sample->nstrata);
	Assert(BufferGetBlockNumber(buffer) >= stratum_start(sample, stratum) &&
		   BufferGetBlockNumber(buffer) < stratum_start(sample, stratum + 1));
	DEBUG_POINT("bloat-page");
	for (int q = 0; q < nquantities; q++)
		sample->quantity_sum[q] += nblocks * quantities[q];
	/* if all pages are read the maps add nothing */
	if (sample->nstrata == sample->nblocks)
	{
		ReleaseBuffer(buffer);
		return;
	}

	ask_maps(sample, BufferGetBlockNumber(buffer), answers);
	ReleaseBuffer(buffer);
	ask_maps_of_stratum(sample, stratum, averages);
	for (int m = 0; m < NMAPS; m++)
		sample->deviation_sum[m] += nblocks * (averages[m] - answers[m]);

	for (int q = 0; stratum > 0 && q < nquantities; q++)
	{
		double		difference = quantities[q] - sample->previous_quantity[q];

		sample->quantity_squares[q] += difference * difference;
		for (int m = 0; m < NMAPS; m++)
			sample->quantity_by_answer[q][m] += difference *
				(answers[m] - sample->previous_answer[m]);
	}
	for (int m = 0; stratum > 0 && m < NMAPS; m++)
	{
		for (int n = 0; n < NMAPS; n++)
			sample->answer_products[m][n] += (answers[m] - sample->previous_answer[m]) *
				(answers[n] - sample->previous_answer[n]);
	}
	memcpy(sample->previous_quantity, quantities, nquantities * sizeof(double));
	memcpy(sample->previous_answer, answers, sizeof(answers));
}

/* page_sample_size -- see page_sample.h. */
BlockNumber
page_sample_size(const PageSample *sample)
{
	return sample->next_measured;
}

/* page_sample_of -- see page_sample.h. */
BlockNumber
page_sample_of(const PageSample *sample)
{
	return sample->nblocks;
}

/* page_sample_total -- see page_sample.h. */
Total
page_sample_total(const PageSample *sample, int quantity)
{
	Total		total = {0};
	double		nstrata = sample->nstrata;
	double		worth[NMAPS];
	double		explained = 0;
	double		unexplained;

	Assert(quantity >= 0 && quantity < MAX_QUANTITIES);
	Assert(sample->next_measured == sample->nstrata);
	if (sample->nstrata == 0)
		return total;

	worth_of_maps(sample, quantity, worth);
	total.value = sample->quantity_sum[quantity];
	unexplained = sample->quantity_squares[quantity];
	for (int m = 0; m < NMAPS; m++)
	{
		total.value += worth[m] * sample->deviation_sum[m];
		unexplained -= 2 * worth[m] * sample->quantity_by_answer[quantity][m];
		for (int n = 0; n < NMAPS; n++)
			explained += worth[m] * worth[n] * sample->answer_products[m][n];
	}
	unexplained += explained;
	total.value = Max(total.value, 0);

	/* half the mean square of the differences is the variance in a stratum */
	if (sample->nstrata > 1)
	{
		double		stratum_blocks = sample->nblocks / nstrata;
		double		lookups = Min(stratum_blocks, LOOKUPS_PER_PAGE);
		double		variance = Max(unexplained, 0) * (1 - 1 / stratum_blocks) +
			explained / lookups * (1 - lookups / stratum_blocks);

		variance /= 2 * (nstrata - 1);
		total.standard_error = sample->nblocks * sqrt(variance / nstrata);
	}
	return total;
}

/* page_sample_end -- see page_sample.h. */
void
page_sample_end(PageSample *sample)
{
	read_stream_end(sample->stream);
	FreeAccessStrategy(sample->strategy);
	if (BufferIsValid(sample->vmbuffer))
		ReleaseBuffer(sample->vmbuffer);
	pfree(sample);
}

/* next_block -- a random block of the next stratum, for the read stream. */
static BlockNumber
next_block(ReadStream *stream, void *callback_data, void *per_buffer_data)
{
	PageSample *sample = callback_data;
	BlockNumber stratum = sample->next_read;

	if (stratum >= sample->nstrata)
		return InvalidBlockNumber;
	sample->next_read++;
	return pg_prng_uint64_range(&sample->read_prng, stratum_start(sample, stratum),
								stratum_start(sample, stratum + 1) - 1);
}

/* stratum_start -- the first block of a stratum; of the one after the last, the end. */
static BlockNumber
stratum_start(const PageSample *sample, BlockNumber stratum)
{
	Assert(sample->nstrata > 0 && sample->nstrata <= sample->nblocks);
	Assert(stratum <= sample->nstrata);

	return sample->first_block +
		(BlockNumber) ((uint64) stratum * sample->nblocks / sample->nstrata);
}

/*
 * ask_maps_of_stratum
 *		The average of what the maps say of a stratum's blocks; if these are many,
 *		of some of them, at equal distances.
 */
static void
ask_maps_of_stratum(PageSample *sample, BlockNumber stratum, double *answers)
{
	BlockNumber start = stratum_start(sample, stratum);
	double		nblocks = stratum_start(sample, stratum + 1) - start;
	int			lookups = Min(nblocks, LOOKUPS_PER_PAGE);
	double		offset = nblocks > lookups ? pg_prng_double(&sample->lookup_prng) : 0;

	for (int m = 0; m < NMAPS; m++)
		answers[m] = 0;
	for (int i = 0; i < lookups; i++)
	{
		double		block_answers[NMAPS];

		ask_maps(sample, start + (BlockNumber) ((i + offset) * nblocks / lookups),
				 block_answers);
		for (int m = 0; m < NMAPS; m++)
			answers[m] += block_answers[m] / lookups;
	}
}

/* ask_maps -- what the maps say of a block. */
static void
ask_maps(PageSample *sample, BlockNumber block, double *answers)
{
	answers[MAP_FREE_SPACE] = (double) GetRecordedFreeSpace(sample->rel, block) / BLCKSZ;
	answers[MAP_ALL_VISIBLE] = 0;
	if (sample->rel->rd_rel->relkind != RELKIND_INDEX)
		answers[MAP_ALL_VISIBLE] = VM_ALL_VISIBLE(sample->rel, block, &sample->vmbuffer) ? 1 : 0;
}

/*
 * worth_of_maps
 *		Find the factors by which the maps' answers predict a quantity: those that
 *		leave the least squares of differences between neighbouring strata.
 */
static void
worth_of_maps(const PageSample *sample, int quantity, double *worth)
{
	const double (*aa)[NMAPS] = sample->answer_products;
	const double *qa = sample->quantity_by_answer[quantity];
	double		determinant = aa[0][0] * aa[1][1] - aa[0][1] * aa[1][0];

	for (int m = 0; m < NMAPS; m++)
		worth[m] = 0;
	if (sample->nstrata < MIN_PAGES_FOR_MAPS)
		return;

	/* if both maps say nearly the same, one is enough */
	if (determinant > 1e-6 * aa[0][0] * aa[1][1])
	{
		worth[0] = (qa[0] * aa[1][1] - qa[1] * aa[0][1]) / determinant;
		worth[1] = (qa[1] * aa[0][0] - qa[0] * aa[1][0]) / determinant;
	}
	else if (aa[0][0] > 0)
		worth[0] = qa[0] / aa[0][0];
	else if (aa[1][1] > 0)
		worth[1] = qa[1] / aa[1][1];
}
