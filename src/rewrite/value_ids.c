/*-------------------------------------------------------------------------
 *
 * value_ids.c
 *	  Which values in the TOAST table the rows of the new table point at.
 *
 * The members of the team note them as they copy the table (heap_copy.c).  Then
 * they leave out of the new TOAST table what nothing points at: the values of
 * dropped columns, or of rows that PostgreSQL's VACUUM FULL removed without their
 * values.
 *
 * The ids are in a bitmap in the team's shared memory.  They come from a counter, so
 * those of one table mostly lie close together.  The bitmap's size is a fraction of
 * the TOAST table's, and at most maintenance_work_mem or 16 MB, as there may be
 * little shared memory in a container.  Where the ids range wider than the bitmap, a
 * bit stands for several of them.  Then a value to which nothing points may stay
 * because of another one; none is lost.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"

#include "rewrite/value_ids.h"

#define BITS_A_WORD			32
/* For a page of the TOAST table, which has a few values at most */
#define BITS_A_PAGE			1024
#define LEAST_BITS			((uint64) 1 << 19)
#define MOST_BITS			((uint64) 1 << 27)

struct ValueIds
{
	uint32		mask;			/* of the ids' bits that count */
	pg_atomic_uint32 words[FLEXIBLE_ARRAY_MEMBER];
};

static uint64 bits_for(BlockNumber toast_blocks);

/* value_ids_size -- the shared memory that it takes, in bytes. */
Size
value_ids_size(BlockNumber toast_blocks)
{
	return offsetof(ValueIds, words) + bits_for(toast_blocks) / BITS_PER_BYTE;
}

/* value_ids_init -- begin with no ids. */
void
value_ids_init(ValueIds *ids, BlockNumber toast_blocks)
{
	uint64		nbits = bits_for(toast_blocks);

	/* notes are found by this mask */
	Assert((nbits & (nbits - 1)) == 0 && nbits >= BITS_A_WORD);
	ids->mask = (uint32) (nbits - 1);
	for (uint64 i = 0; i < nbits / BITS_A_WORD; i++)
		pg_atomic_init_u32(&ids->words[i], 0);
}

/* value_ids_note -- a row of the new table points at this value. */
void
value_ids_note(ValueIds *ids, Oid value_id)
{
	uint32		position = value_id & ids->mask;
	uint32		bit = (uint32) 1 << (position % BITS_A_WORD);
	pg_atomic_uint32 *word = &ids->words[position / BITS_A_WORD];

	if (!(pg_atomic_read_u32(word) & bit))
		(void) pg_atomic_fetch_or_u32(word, bit);
}

/* value_ids_include -- may a row point at this value? */
bool
value_ids_include(ValueIds *ids, Oid value_id)
{
	uint32		position = value_id & ids->mask;

	return (pg_atomic_read_u32(&ids->words[position / BITS_A_WORD]) >> (position % BITS_A_WORD)) & 1;
}

/* bits_for -- the bitmap's size, a power of two. */
static uint64
bits_for(BlockNumber toast_blocks)
{
	uint64		memory = pg_prevpower2_64((uint64) maintenance_work_mem * 1024 * BITS_PER_BYTE);
	uint64		wanted = pg_nextpower2_64(Max((uint64) toast_blocks, 1) * BITS_A_PAGE);

	return Min(Max(wanted, LEAST_BITS), Min(memory, MOST_BITS));
}
