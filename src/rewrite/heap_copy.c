/*-------------------------------------------------------------------------
 *
 * heap_copy.c
 *	  Copying a heap: what each member of the team does.
 *
 * The members claim ranges of the old heap's blocks.  They copy the tuples that a
 * snapshot may still see to pages of their own (new_pages.c), frozen as far as
 * they can be; tuple_copy.c makes the copies.  README.md says which tuples are left to the
 * leader, and why the TOAST table is copied last.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/read_stream.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "compat.h"
#include "debug_point.h"
#include "machine/prefetch.h"
#include "report/progress.h"
#include "rewrite/rewrite.h"
#include "rewrite/tuple_fate.h"

/* The old heap is claimed by ranges of at most this many blocks. */
#define COPY_RANGE_BLOCKS	128
/* A process reports its progress once in this many blocks. */
#define PROGRESS_BLOCKS		32
#define BITS_A_WORD			32
/* The chunk's value, its number, and what is in it */
#define TOAST_COLUMNS		3

/* One process's copying of one heap */
typedef struct HeapCopy
{
	TableRewrite *rewrite;
	RewriteHeap heap;
	HeapCopyShared *shared;
	RewriteCounters *counters;
	MemoryContext tuple_context;
	BlockNumber done;			/* pages, not reported yet */
	int64		tuples_told;	/* reported */

	/* the read stream's */
	uint64		next;
	uint64		end;
	FileCache  *file_cache;		/* NULL: the page cache doesn't matter */
	FileCacheMap *file_cache_map;
} HeapCopy;

static BlockNumber next_copied_block(ReadStream *stream, void *private_data,
									 void *per_buffer_data);
static void begin_file_cache(HeapCopy *copy, BufferAccessStrategy strategy);
static void copy_pages(HeapCopy *copy, ReadStream *stream);
static void copy_page(HeapCopy *copy, Buffer buffer);
static bool copy_tuple(HeapCopy *copy, HeapTuple tuple, uint16 infomask);
static bool is_orphan(HeapCopy *copy, HeapTuple tuple);
static void refuse_chunk(HeapCopy *copy, HeapTuple tuple);
static void leave_to_leader(HeapCopy *copy, BlockNumber blkno);
static pg_atomic_uint32 *left_word(RewriteShared *shared, HeapCopyShared *copy,
								   BlockNumber blkno);
static void tell_progress(HeapCopy *copy);

/* heap_copy_open -- open the old and the new heap, if the table has such a one. */
void
heap_copy_open(TableRewrite *rewrite, RewriteHeap heap)
{
	HeapCopyShared *shared = &rewrite->shared->heaps[heap];

	Assert(rewrite->old_heaps[heap] == NULL && rewrite->new_heaps[heap] == NULL);

	if (!shared->is_wanted)
		return;
	rewrite->old_heaps[heap] = table_open(shared->old_relid, AccessExclusiveLock);
	rewrite->new_heaps[heap] = table_open(shared->new_relid, AccessExclusiveLock);

	if (heap == REWRITE_TABLE)
	{
		TupleDesc	desc = RelationGetDescr(rewrite->old_heaps[heap]);

		rewrite->values = palloc_array(Datum, Max(desc->natts, TOAST_COLUMNS));
		rewrite->nulls = palloc_array(bool, Max(desc->natts, TOAST_COLUMNS));
		rewrite->dropped = palloc_array(AttrNumber, desc->natts);
		for (int i = 0; i < desc->natts; i++)
			if (TupleDescAttr(desc, i)->attisdropped)
				rewrite->dropped[rewrite->ndropped++] = i + 1;
	}
}

/* heap_copy_shared_size -- the size of the bits for blocks, in bytes. */
Size
heap_copy_shared_size(const HeapCopyShared *copy)
{
	return mul_size(sizeof(uint32), copy->old_blocks / BITS_A_WORD + 1);
}

/* heap_copy_init_shared -- prepare what isn't constant. */
void
heap_copy_init_shared(RewriteShared *shared, HeapCopyShared *copy)
{
	pg_atomic_uint32 *words;

	Assert(shared->nmembers > 0);

	if (!copy->is_wanted)
		return;
	ranges_init(&copy->ranges, 0, copy->old_blocks, 1, COPY_RANGE_BLOCKS, shared->nmembers);
	new_blocks_init(&copy->new_blocks);
	pg_atomic_init_u64(&copy->blocks_done, 0);
	pg_atomic_init_u64(&copy->tuples_kept, 0);
	pg_atomic_init_u64(&copy->stale_locks, 0);
	words = (pg_atomic_uint32 *) ((char *) shared + copy->left_blocks_start);
	for (BlockNumber i = 0; i <= copy->old_blocks / BITS_A_WORD; i++)
		pg_atomic_init_u32(&words[i], 0);
	if (copy->preserves_cache)
		file_cache_map_init((FileCacheMap *) ((char *) shared + copy->file_cache_start),
							copy->old_blocks);
}

/*
 * heap_copy_phase
 *		Every member: copy blocks as long as there are any, or until it is parked.
 */
void
heap_copy_phase(TableRewrite *rewrite, RewriteHeap heap)
{
	RewriteShared *shared = rewrite->shared;
	RewriteMemberShared *member = rewrite_member(shared, rewrite->member);
	Relation	old_heap = rewrite->old_heaps[heap];
	HeapCopy	copy = {
		.rewrite = rewrite,
		.heap = heap,
		.shared = &shared->heaps[heap],
		.counters = &rewrite->counters[heap],
		.tuple_context = AllocSetContextCreate(CurrentMemoryContext, "Rewritten tuple",
											   ALLOCSET_DEFAULT_SIZES),
	};
	BufferAccessStrategy strategy = NULL;
	ReadStream *stream;

	/*
	 * transactions that wrote to the old heap have ended, and no other
	 * session knows the new one
	 */
	Assert(CheckRelationLockedByMe(old_heap, AccessExclusiveLock, true));
	Assert(CheckRelationLockedByMe(rewrite->new_heaps[heap], AccessExclusiveLock, true));
	Assert(rewrite->new_pages == NULL);
	Assert(TransactionIdIsNormal(copy.shared->oldest_xmin));
	Assert(TransactionIdIsNormal(shared->freeze_limit));

	rewrite->new_pages = new_pages_begin(rewrite->new_heaps[heap], &copy.shared->new_blocks);
	/* what it left itself, if it was parked meanwhile */
	if (!rewrite_is_leader(rewrite) && member->has_leftover)
		new_pages_take_over(rewrite->new_pages, member->leftover.data);
	member->has_leftover = false;

	/* as the server's scans do, so that a big table doesn't empty the buffers */
	if (!RelationUsesLocalBuffers(old_heap) && copy.shared->old_blocks > NBuffers / 4)
		strategy = GetAccessStrategy(BAS_BULKREAD);
	begin_file_cache(&copy, strategy);
	stream = read_stream_begin_relation(READ_STREAM_FULL | COMPAT_READ_STREAM_BATCHING,
										strategy, old_heap, MAIN_FORKNUM,
										next_copied_block, &copy, 0);
	copy_pages(&copy, stream);
	read_stream_end(stream);
	file_cache_end(copy.file_cache);
	tell_progress(&copy);
	if (strategy != NULL)
		FreeAccessStrategy(strategy);
	MemoryContextDelete(copy.tuple_context);

	if (!rewrite_is_leader(rewrite))
	{
		member->has_leftover = new_pages_hand_over(rewrite->new_pages, member->leftover.data);
		rewrite->new_pages = NULL;
	}
}

/* begin_file_cache -- if what is read of the old heap is to be dropped. */
static void
begin_file_cache(HeapCopy *copy, BufferAccessStrategy strategy)
{
	HeapCopyShared *shared = copy->shared;

	if (!shared->preserves_cache)
		return;
	copy->file_cache = file_cache_begin(GetAccessStrategyBufferCount(strategy));
	copy->file_cache_map = (FileCacheMap *) ((char *) copy->rewrite->shared + shared->file_cache_start);
}

/* copy_pages -- all that a stream has, or the part of it until this process is parked. */
static void
copy_pages(HeapCopy *copy, ReadStream *stream)
{
	TableRewrite *rewrite = copy->rewrite;
	Buffer		buffer,
				next;

	next = read_stream_next_buffer(stream, NULL);
	while (BufferIsValid(buffer = next))
	{
		next = read_stream_next_buffer(stream, NULL);
		prefetch_page(next);
		rewrite->place = rewrite->old_heaps[copy->heap];
		rewrite->blkno = BufferGetBlockNumber(buffer);
		copy_page(copy, buffer);
		ReleaseBuffer(buffer);
		rewrite->place = NULL;
		new_pages_flush(rewrite->new_pages);

		rewrite->phase_pages++;
		if (++copy->done == PROGRESS_BLOCKS)
			tell_progress(copy);
		DEBUG_POINT("heap-copy");
		delay_point();
	}
}

/* heap_copy_take_over -- add the tuples of pages that workers didn't fill. */
void
heap_copy_take_over(TableRewrite *rewrite)
{
	RewriteShared *shared = rewrite->shared;

	Assert(rewrite_is_leader(rewrite) && rewrite->new_pages != NULL);

	for (int i = 1; i < shared->nmembers; i++)
	{
		RewriteMemberShared *member = rewrite_member(shared, i);

		if (pg_atomic_read_u32(&member->joined) && member->has_leftover)
			new_pages_take_over(rewrite->new_pages, member->leftover.data);
		member->has_leftover = false;
	}
}

/* heap_copy_finish -- write the last pages, and have all of the new heap synced. */
void
heap_copy_finish(TableRewrite *rewrite, RewriteHeap heap)
{
	Assert(rewrite_is_leader(rewrite) && rewrite->new_pages != NULL);
	Assert(rewrite->new_heaps[heap] != NULL);
	new_pages_end(rewrite->new_pages);
	rewrite->new_pages = NULL;
	new_blocks_sync(rewrite->new_heaps[heap], &rewrite->shared->heaps[heap].new_blocks);
}

/* heap_copy_left_blocks -- how many blocks have tuples that are left to the leader? */
int64
heap_copy_left_blocks(RewriteShared *shared, HeapCopyShared *copy)
{
	int64		n = 0;

	for (BlockNumber i = 0; i <= copy->old_blocks / BITS_A_WORD; i++)
		n += pg_popcount32(pg_atomic_read_u32(left_word(shared, copy, i * BITS_A_WORD)));
	return n;
}

/* heap_copy_next_left_block -- the first of these blocks from this one on. */
BlockNumber
heap_copy_next_left_block(RewriteShared *shared, HeapCopyShared *copy, BlockNumber blkno)
{
	while (blkno < copy->old_blocks)
	{
		uint32		word = pg_atomic_read_u32(left_word(shared, copy, blkno));

		word >>= blkno % BITS_A_WORD;
		if (word != 0)
			return blkno + pg_rightmost_one_pos32(word);
		blkno += BITS_A_WORD - blkno % BITS_A_WORD;
	}
	return InvalidBlockNumber;
}

/* next_copied_block -- the read stream's callback; ends it also if this process is to be parked. */
static BlockNumber
next_copied_block(ReadStream *stream, void *private_data, void *per_buffer_data)
{
	HeapCopy   *copy = private_data;

	if (copy->next >= copy->end &&
		(pace_give_place() ||
		 !ranges_claim(&copy->shared->ranges, &copy->next, &copy->end)))
		return InvalidBlockNumber;
	file_cache_before_read(copy->file_cache, copy->rewrite->old_heaps[copy->heap],
						   copy->file_cache_map, copy->next);
	return copy->next++;
}

/*
 * copy_page
 *		Copy the tuples of a page, which is pinned.
 */
static void
copy_page(HeapCopy *copy, Buffer buffer)
{
	TableRewrite *rewrite = copy->rewrite;
	Relation	rel = rewrite->old_heaps[copy->heap];
	BlockNumber blkno = rewrite->blkno;
	TransactionId oldest_xmin = copy->shared->oldest_xmin;
	RewriteCounters *counters = copy->counters;
	Page		page = BufferGetPage(buffer);
	OffsetNumber maxoff;
	HeapTupleData tuple;

	Assert(blkno < copy->shared->old_blocks && BufferGetBlockNumber(buffer) == blkno);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	maxoff = PageIsNew(page) ? 0 : PageGetMaxOffsetNumber(page);
	tuple_copy_begin_page(rewrite, page);
	audit_rewrite_begin_page(rewrite, page);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		TupleFate	fate;
		uint16		infomask;

		rewrite->offnum = off;
		if (!tuple_copy_find(rel, page, blkno, off, &tuple))
			continue;
		fate = tuple_fate(rel, &tuple, buffer, oldest_xmin, &infomask);
		if (DEBUG_FAULT(copy->heap == REWRITE_TABLE ? "rewrite-dead" : "rewrite-dead-chunk"))
			fate = TUPLE_DEAD;
		audit_rewrite_fate(rewrite, off, fate);
		if (copy->heap == REWRITE_TOAST && fate != TUPLE_DEAD && is_orphan(copy, &tuple))
		{
			counters->tuples_orphaned++;
			audit_rewrite_note(rewrite, off, NULL, 0);
			continue;
		}
		if (fate == TUPLE_DEAD)
			counters->tuples_removed++;
		else
			counters->tuples_kept++;
		if (fate == TUPLE_RECENTLY_DEAD)
			counters->tuples_recently_dead++;

		/* rows of a TOAST table are never updated */
		if (copy->heap == REWRITE_TABLE &&
			tuple_is_in_chain(&tuple, fate, infomask, oldest_xmin))
		{
			counters->tuples_in_chains++;
			leave_to_leader(copy, blkno);
		}
		else if (fate != TUPLE_DEAD && !copy_tuple(copy, &tuple, infomask))
		{
			counters->tuples_too_big++;
			leave_to_leader(copy, blkno);
		}
	}
	rewrite->offnum = InvalidOffsetNumber;
	audit_rewrite_page(rewrite, copy->heap, buffer);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
}

/*
 * copy_tuple
 *		Add a tuple to the new heap.  Returns false if it is too big.
 */
static bool
copy_tuple(HeapCopy *copy, HeapTuple tuple, uint16 infomask)
{
	TableRewrite *rewrite = copy->rewrite;
	HeapTupleHeader copied;
	Size		length = tuple->t_len;

	if (DEBUG_FAULT("rewrite-drop"))
		return true;
	if (unlikely(tuple_copy_must_be_reformed(rewrite, copy->heap, tuple)))
	{
		MemoryContext old = MemoryContextSwitchTo(copy->tuple_context);
		HeapTuple	reformed = tuple_copy_reform(rewrite, copy->heap, tuple);

		MemoryContextSwitchTo(old);
		if (unlikely(tuple_copy_is_too_big(reformed->t_len)))
		{
			/* the leader has nothing to make a chunk smaller by */
			if (copy->heap == REWRITE_TOAST)
				refuse_chunk(copy, tuple);
			MemoryContextReset(copy->tuple_context);
			return false;
		}
		length = reformed->t_len;
		copied = new_pages_add(rewrite->new_pages, reformed->t_data, length);
		if (copy->heap == REWRITE_TABLE)
			heap_copy_note_values(rewrite, reformed);
		MemoryContextReset(copy->tuple_context);
	}
	else
	{
		copied = new_pages_add(rewrite->new_pages, tuple->t_data, tuple->t_len);
		if (copy->heap == REWRITE_TABLE)
			heap_copy_note_values(rewrite, tuple);
	}
	tuple_copy_prepare_header(rewrite, copy->heap, copied, tuple->t_data, infomask);
	if (DEBUG_FAULT("rewrite-change"))
		((char *) copied)[length - 1] ^= 1;
	audit_rewrite_note(rewrite, rewrite->offnum, copied, length);
	return true;
}

/* heap_copy_note_values -- note which values in the TOAST table this tuple needs. */
void
heap_copy_note_values(TableRewrite *rewrite, HeapTuple tuple)
{
	TupleDesc	desc = RelationGetDescr(rewrite->old_heaps[REWRITE_TABLE]);

	Assert(rewrite->values != NULL && rewrite->nulls != NULL);

	if (!HeapTupleHasExternal(tuple) || rewrite->shared->value_ids_start == 0)
		return;
	heap_deform_tuple(tuple, desc, rewrite->values, rewrite->nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		struct varlena *value;
		struct varatt_external pointer;

		if (rewrite->nulls[i] || TupleDescAttr(desc, i)->attlen != -1)
			continue;
		value = (struct varlena *) DatumGetPointer(rewrite->values[i]);
		if (!VARATT_IS_EXTERNAL_ONDISK(value))
			continue;
		VARATT_EXTERNAL_GET_POINTER(pointer, value);
		value_ids_note(rewrite_value_ids(rewrite->shared), pointer.va_valueid);
	}
}

/*
 * is_orphan
 *		Does this chunk in the TOAST table belong to a value that no row needs?
 */
static bool
is_orphan(HeapCopy *copy, HeapTuple tuple)
{
	Relation	rel = copy->rewrite->old_heaps[REWRITE_TOAST];
	TupleDesc	desc = RelationGetDescr(rel);
	Datum		value_id = 0;
	bool		isnull = true;

	if (HeapTupleHeaderGetNatts(tuple->t_data) == desc->natts)
		value_id = heap_getattr(tuple, 1, desc, &isnull);
	if (isnull)
		refuse_chunk(copy, tuple);
	return !value_ids_include(rewrite_value_ids(copy->rewrite->shared), DatumGetObjectId(value_id));
}

/* refuse_chunk -- raise the error for a damaged chunk. */
static void
refuse_chunk(HeapCopy *copy, HeapTuple tuple)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("tuple (%u,%u) of relation \"%s\" is not one of a TOAST table",
					ItemPointerGetBlockNumber(&tuple->t_self),
					ItemPointerGetOffsetNumber(&tuple->t_self),
					RelationGetRelationName(copy->rewrite->old_heaps[REWRITE_TOAST]))));
}

/* leave_to_leader -- mark this block: it has tuples for the leader, one of them that in hand. */
static void
leave_to_leader(HeapCopy *copy, BlockNumber blkno)
{
	audit_rewrite_note(copy->rewrite, copy->rewrite->offnum, NULL, 0);
	(void) pg_atomic_fetch_or_u32(left_word(copy->rewrite->shared, copy->shared, blkno),
								  (uint32) 1 << (blkno % BITS_A_WORD));
}

/* heap_copy_show_progress -- bring pg_stat_progress_cluster, or ..._repack, up to date. */
void
heap_copy_show_progress(TableRewrite *rewrite, RewriteHeap heap)
{
	HeapCopyShared *copy = &rewrite->shared->heaps[heap];
	int64		tuples = pg_atomic_read_u64(&copy->tuples_kept);
	const int	progress[] = {
		PROGRESS_REPACK_HEAP_BLKS_SCANNED,
		PROGRESS_REPACK_HEAP_TUPLES_SCANNED,
		PROGRESS_REPACK_HEAP_TUPLES_INSERTED
	};
	const int64 values[] = {pg_atomic_read_u64(&copy->blocks_done), tuples, tuples};

	Assert(rewrite_is_leader(rewrite));

	if (heap == REWRITE_TABLE)
		pgstat_progress_update_multi_param(lengthof(progress), progress, values);
}

/* left_word -- the word with the bit of this block. */
static pg_atomic_uint32 *
left_word(RewriteShared *shared, HeapCopyShared *copy, BlockNumber blkno)
{
	return (pg_atomic_uint32 *) ((char *) shared + copy->left_blocks_start) + blkno / BITS_A_WORD;
}

/* tell_progress -- report what was done since the last time. */
static void
tell_progress(HeapCopy *copy)
{
	pg_atomic_fetch_add_u64(&copy->shared->blocks_done, copy->done);
	pg_atomic_fetch_add_u64(&copy->shared->tuples_kept,
							copy->counters->tuples_kept - copy->tuples_told);
	copy->done = 0;
	copy->tuples_told = copy->counters->tuples_kept;
	progress_blocks_done(copy->rewrite->phase_pages);
	if (rewrite_is_leader(copy->rewrite))
		heap_copy_show_progress(copy->rewrite, copy->heap);
}
