/*-------------------------------------------------------------------------
 *
 * link_sort.c
 *	  Sorting notes on row versions and the links between them.
 *
 * There may be as many notes as the table has rows.  So the server's tuplesort
 * sorts them, which writes to temporary files what doesn't fit in memory.  A note
 * has 16 bytes, and tuplesort takes it for a uuid, as it compares these fast, byte
 * by byte.  So numbers are stored with their highest byte first, and the order is
 * that of TID, XID, kind, and the other TID.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "port/pg_bswap.h"
#include "utils/tuplesort.h"
#include "utils/typcache.h"
#include "utils/uuid.h"

#include "rewrite/link_sort.h"

/* The other TID's offset shares two bytes with the kind */
#define OFFSET_BITS		14
#define OFFSET_MASK		((1 << OFFSET_BITS) - 1)

StaticAssertDecl(MaxOffsetNumber <= OFFSET_MASK, "offsets leave no room for the kind of a note");
StaticAssertDecl(UUID_LEN == 16, "a note is not as long as a uuid");

struct LinkSort
{
	Tuplesortstate *sort;
	bool		is_performed;
};

/* link_sort_begin -- begin to sort notes. */
LinkSort *
link_sort_begin(int memory, bool is_read_again)
{
	LinkSort   *sort = palloc0_object(LinkSort);
	TypeCacheEntry *type = lookup_type_cache(UUIDOID, TYPECACHE_LT_OPR);

	Assert(memory > 0);
	sort->sort = tuplesort_begin_datum(UUIDOID, type->lt_opr, InvalidOid, false, memory, NULL,
									   is_read_again ? TUPLESORT_RANDOMACCESS : TUPLESORT_NONE);
	return sort;
}

/* link_sort_put -- add a copy of a note. */
void
link_sort_put(LinkSort *sort, const LinkNote *note)
{
	uint32		block = pg_hton32(ItemPointerGetBlockNumberNoCheck(&note->tid));
	uint16		offset = pg_hton16(ItemPointerGetOffsetNumberNoCheck(&note->tid));
	uint32		xid = pg_hton32(note->xid);
	OffsetNumber other = ItemPointerGetOffsetNumberNoCheck(&note->other);
	uint16		kind_and_other = pg_hton16(note->kind << OFFSET_BITS | other);
	uint32		other_block = pg_hton32(ItemPointerGetBlockNumberNoCheck(&note->other));
	pg_uuid_t	packed;

	Assert(!sort->is_performed);
	Assert(note->kind >= 0 && note->kind < 4 && other <= OFFSET_MASK);

	memcpy(packed.data, &block, 4);
	memcpy(packed.data + 4, &offset, 2);
	memcpy(packed.data + 6, &xid, 4);
	memcpy(packed.data + 10, &kind_and_other, 2);
	memcpy(packed.data + 12, &other_block, 4);
	tuplesort_putdatum(sort->sort, UUIDPGetDatum(&packed), false);
}

/* link_sort_perform -- sort the notes. */
void
link_sort_perform(LinkSort *sort)
{
	Assert(!sort->is_performed);
	tuplesort_performsort(sort->sort);
	sort->is_performed = true;
}

/* link_sort_next -- the next note in order. */
bool
link_sort_next(LinkSort *sort, LinkNote *note)
{
	Datum		datum;
	bool		isnull;
	pg_uuid_t  *packed;
	uint32		block;
	uint16		offset;
	uint32		xid;
	uint16		kind_and_other;
	uint32		other_block;

	Assert(sort->is_performed);
	if (!tuplesort_getdatum(sort->sort, true, false, &datum, &isnull, NULL))
		return false;

	packed = DatumGetUUIDP(datum);
	memcpy(&block, packed->data, 4);
	memcpy(&offset, packed->data + 4, 2);
	memcpy(&xid, packed->data + 6, 4);
	memcpy(&kind_and_other, packed->data + 10, 2);
	memcpy(&other_block, packed->data + 12, 4);

	kind_and_other = pg_ntoh16(kind_and_other);
	ItemPointerSet(&note->tid, pg_ntoh32(block), pg_ntoh16(offset));
	note->xid = pg_ntoh32(xid);
	note->kind = kind_and_other >> OFFSET_BITS;
	ItemPointerSet(&note->other, pg_ntoh32(other_block), kind_and_other & OFFSET_MASK);
	return true;
}

/* link_sort_rewind -- begin with the first note again. */
void
link_sort_rewind(LinkSort *sort)
{
	Assert(sort->is_performed);
	tuplesort_rescan(sort->sort);
}

/* link_sort_end -- free a sort. */
void
link_sort_end(LinkSort *sort)
{
	tuplesort_end(sort->sort);
	pfree(sort);
}
