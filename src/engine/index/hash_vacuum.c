/*-------------------------------------------------------------------------
 *
 * hash_vacuum.c
 *	  Bulk deletion in hash indexes, by any number of processes in one index.
 *
 * The members of a team claim ranges of bucket numbers.  The process that has
 * claimed a bucket passes over its pages, the primary page first and then the chain of
 * overflow pages.  All TIDs of a page are looked up in the dead-TID store in
 * one go, and then the page is changed once.  Changes of a bucket, locks
 * and WAL are those of the server's hashbucketcleanup.
 *
 * README.md says why no entry of a dead item is left, and which buckets are put off.
 * Unlike the server, we never nap while a page is locked: we pay for the pages of a
 * bucket when it is done.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/hash.h"
#include "access/hash_xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/read_stream.h"
#include "utils/rel.h"

#include "audit/audit.h"
#include "compat.h"
#include "debug_point.h"
#include "engine/index/index_kind.h"
#include "engine/index/link_walk.h"
#include "guards/guards.h"
#include "machine/prefetch.h"
#include "machine/wal_writer.h"
#include "pace/pace.h"
#include "report/progress.h"

/* Buckets are claimed in ranges of at most this many. */
#define RANGE_BUCKETS		512

/* What the team shares of a hash index; written by the leader */
typedef struct HashShared
{
	Bucket		first_maxbucket;	/* the metapage, when the round began */
	double		first_ntuples;
	double		removed_before; /* in earlier rounds */
} HashShared;

/* One process's part of one index */
typedef struct HashScan
{
	KindScan	base;			/* its range is of buckets */
	HashMetaPageData meta;		/* a copy, which may be old */
	BlockList  *put_off;		/* buckets to be visited in the end */
	BlockNumber pages_told;		/* of these, in cyclone.progress */

	/* the TIDs of the page in hand, and which of them are dead */
	ItemPointerData tids[MaxIndexTuplesPerPage];
	bool		dead[MaxIndexTuplesPerPage];
} HashScan;

/* A bucket that is being visited */
typedef struct BucketVisit
{
	Bucket		bucket;
	Buffer		primary;		/* pinned until the end */
	bool		split_cleanup;	/* delete what a split has copied elsewhere? */
	bool		counts;			/* are tuples that are left to be counted? */
	bool		dirty;			/* was something deleted? */
	bool		damaged;		/* do links lead to, or back to, other pages?
								 * The log says so once. */
} BucketVisit;

static void hash_begin(TableVacuum *vacuum, int number, int nmembers);
static void hash_vacuum(TableVacuum *vacuum, int number);
static void hash_visit_put_off(TableVacuum *vacuum, int number);
static void hash_conclude(TableVacuum *vacuum, int number);
static HashScan *hash_make_scan(TableVacuum *vacuum, int number);
static void refresh_meta(HashScan *scan);
static void scan_bucket_ranges(HashScan *scan);
static Buffer next_primary(ReadStream *stream, Bucket *bucket, bool resumes);
static BlockNumber next_bucket_block(ReadStream *stream, void *private_data,
									 void *per_buffer_data);
static bool claim_new_buckets(HashScan *scan);
static void visit_put_off(HashScan *scan, Bucket bucket);
static Buffer lock_bucket(HashScan *scan, Bucket bucket);
static bool is_being_populated(Buffer primary);
static void clean_bucket(HashScan *scan, Bucket bucket, Buffer primary, bool counts);
static void clean_chain(HashScan *scan, BucketVisit *visit);
static void check_bucket(HashScan *scan, BucketVisit *visit, Buffer buffer);
static void check_link_back(HashScan *scan, BucketVisit *visit, Buffer buffer, BlockNumber before);
static bool needs_split_cleanup(HashScan *scan, Buffer primary);
static void hash_clean_page(HashScan *scan, BucketVisit *visit, Buffer buffer);
static int	match_page(HashScan *scan, Buffer buffer);
static void delete_items(HashScan *scan, BucketVisit *visit, Buffer buffer,
						 OffsetNumber *deletable, int ndeletable, bool any_dead);
static void end_split_cleanup(HashScan *scan, Buffer primary);

const IndexKind hash_kind = {
	.name = "hash",
	.shared_size = sizeof(HashShared),
	.bulk_delete = {
		.begin = hash_begin,
		.work = hash_vacuum,
		.is_done = index_blocks_are_claimed,
		.more_work = hash_visit_put_off,
		.conclude = hash_conclude,
		.finish = index_leave_stats,
	},
};

/*
 * hash_begin
 *		Make an index's buckets available, and note what the metapage counts.
 */
static void
hash_begin(TableVacuum *vacuum, int number, int nmembers)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	HashShared *hash = index_area(vacuum, number);
	Buffer		metabuf = InvalidBuffer;
	HashMetaPage meta = _hash_getcachedmetap(vacuum->indexes[number], &metabuf, true);

	Assert(is_leader(vacuum));

	hash->first_maxbucket = meta->hashm_maxbucket;
	hash->first_ntuples = meta->hashm_ntuples;
	hash->removed_before = shared->stats.tuples_removed;
	ReleaseBuffer(metabuf);

	ranges_init(&shared->ranges, 0, (uint64) hash->first_maxbucket + 1,
				1, RANGE_BUCKETS, nmembers);
	pg_atomic_write_u64(&shared->known_end, shared->ranges.end);
	shared->stats.estimated_count = false;
	shared->stats.num_index_tuples = 0;
}

/*
 * hash_vacuum
 *		One process's part of an index: claim buckets until none is left.
 *
 * Buckets that an interrupted split was populating are added to the process's put_off.
 */
static void
hash_vacuum(TableVacuum *vacuum, int number)
{
	HashScan   *scan = hash_make_scan(vacuum, number);

	do
		scan_bucket_ranges(scan);
	while (claim_new_buckets(scan));

	if (scan->put_off->count > 0)
		index_want_more_work(vacuum, number);
	kind_scan_free(&scan->base);
}

/*
 * hash_visit_put_off
 *		Visit the buckets that this process has put off, and new ones.
 *
 * No member may be in hash_vacuum at this index.
 */
static void
hash_visit_put_off(TableVacuum *vacuum, int number)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	BlockList  *put_off = &vacuum->put_off[number];
	HashScan   *scan;

	if (put_off->count == 0)
		return;

	scan = hash_make_scan(vacuum, number);
	(void) index_take_turn(shared, true);
	do
	{
		while (scan->base.next < scan->base.end)
			visit_put_off(scan, scan->base.next++);
		while (put_off->count > 0)
			visit_put_off(scan, put_off->blocks[--put_off->count]);
	} while (claim_new_buckets(scan));
	index_end_turn(shared);
	kind_scan_free(&scan->base);
}

/* hash_conclude -- set the metapage's count of tuples. */
static void
hash_conclude(TableVacuum *vacuum, int number)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	HashShared *hash = index_area(vacuum, number);
	Relation	index = vacuum->indexes[number];
	double		removed = shared->stats.tuples_removed - hash->removed_before;
	Buffer		buffer = _hash_getbuf(index, HASH_METAPAGE, HASH_WRITE, LH_META_PAGE);
	HashMetaPage meta = HashPageGetMeta(BufferGetPage(buffer));

	Assert(is_leader(vacuum));

	START_CRIT_SECTION();

	if (meta->hashm_maxbucket == hash->first_maxbucket &&
		meta->hashm_ntuples == hash->first_ntuples)
		meta->hashm_ntuples = shared->stats.num_index_tuples;
	else
	{
		/* some may have been counted in two buckets */
		meta->hashm_ntuples = Max(meta->hashm_ntuples - removed, 0);
		shared->stats.num_index_tuples = meta->hashm_ntuples;
	}
	MarkBufferDirty(buffer);

	if (RelationNeedsWAL(index))
	{
		xl_hash_update_meta_page record = {.ntuples = meta->hashm_ntuples};

		XLogBeginInsert();
		XLogRegisterData((char *) &record, SizeOfHashUpdateMetaPage);
		XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
		PageSetLSN(BufferGetPage(buffer),
				   XLogInsert(RM_HASH_ID, XLOG_HASH_UPDATE_META_PAGE));
	}
	else
		compat_set_hash_lsn(index, BufferGetPage(buffer));

	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}

/* hash_make_scan -- make what a process needs to visit buckets of an index; palloc'd. */
static HashScan *
hash_make_scan(TableVacuum *vacuum, int number)
{
	HashScan   *scan = kind_scan_make(vacuum, number, sizeof(HashScan));

	scan->put_off = &vacuum->put_off[number];
	refresh_meta(scan);
	Assert(vacuum->dead_tids != NULL);
	return scan;
}

/* refresh_meta -- copy the metapage as it is now; waits for a lock on it. */
static void
refresh_meta(HashScan *scan)
{
	Buffer		metabuf = InvalidBuffer;

	scan->meta = *_hash_getcachedmetap(scan->base.index, &metabuf, true);
	if (BufferIsValid(metabuf))
		ReleaseBuffer(metabuf);
}

/* scan_bucket_ranges -- visit the buckets of ranges claimed one by one. */
static void
scan_bucket_ranges(HashScan *scan)
{
	ReadStream *stream;
	Buffer		next;
	Bucket		next_bucket;

	Assert(!scan->base.has_stream);
	stream = read_stream_begin_relation(READ_STREAM_MAINTENANCE |
										COMPAT_READ_STREAM_BATCHING,
										vacuum_strategy(scan->base.vacuum),
										scan->base.index, MAIN_FORKNUM,
										next_bucket_block, scan, sizeof(Bucket));
	scan->base.has_stream = true;
	guards_begin_pins();
	next = next_primary(stream, &next_bucket, false);
	while (BufferIsValid(next) || BufferIsValid(next = next_primary(stream, &next_bucket, true)))
	{
		Buffer		primary = next;
		Bucket		bucket = next_bucket;

		delay_point();
		failsafe_notice(scan->base.vacuum);
		next = next_primary(stream, &next_bucket, false);
		prefetch_page(next);
		DEBUG_POINT("hash-bucket");

		LockBufferForCleanup(primary);
		_hash_checkpage(scan->base.index, primary, LH_BUCKET_PAGE);
		if (!is_being_populated(primary))
			clean_bucket(scan, bucket, primary, true);
		else
		{
			UnlockReleaseBuffer(primary);
			block_list_add(scan->put_off, bucket);
			DEBUG_POINT("hash-put-off");
		}
	}
	guards_end_pins();
	read_stream_end(stream);
	scan->base.has_stream = false;
	progress_blocks_done(scan->base.pages_done);
}

/*
 * next_primary
 *		The next bucket's primary page, pinned, and the bucket's number; or Invalid.
 *
 * A stream that has ended for a pause resumes with nothing pinned.
 */
static Buffer
next_primary(ReadStream *stream, Bucket *bucket, bool resumes)
{
	void	   *per_buffer_data;
	Buffer		primary = resumes ? guards_resume_stream(stream, &per_buffer_data, NULL) :
		read_stream_next_buffer(stream, &per_buffer_data);

	*bucket = BufferIsValid(primary) ? *(Bucket *) per_buffer_data : InvalidBucket;
	return primary;
}

/*
 * next_bucket_block
 *		The read stream's callback: the primary page of the next bucket, and its
 *		number.  Takes no lock.
 */
static BlockNumber
next_bucket_block(ReadStream *stream, void *private_data, void *per_buffer_data)
{
	HashScan   *scan = private_data;
	Bucket		bucket;
	BlockNumber blkno;
	uint64		start,
				end;

	if (guards_cut_stream())
		return InvalidBlockNumber;
	if (scan->base.next >= scan->base.end)
	{
		if (!index_claim_range(scan->base.shared, &scan->base.gives_up, &start, &end))
			return InvalidBlockNumber;
		scan->base.next = start;
		scan->base.end = end;
	}
	Assert(scan->base.next <= scan->meta.hashm_maxbucket);
	bucket = scan->base.next++;
	*(Bucket *) per_buffer_data = bucket;
	blkno = BUCKET_TO_BLKNO(&scan->meta, bucket);
	before_index_read(scan->base.vacuum, scan->base.number, blkno);
	return blkno;
}

/*
 * claim_new_buckets
 *		With no bucket left, claim buckets that have been added; return false if
 *		there are none.
 */
static bool
claim_new_buckets(HashScan *scan)
{
	uint64		known_end;
	uint64		end;

	Assert(!scan->base.has_stream);
	Assert(scan->base.next >= scan->base.end);
	known_end = pg_atomic_read_u64(&scan->base.shared->known_end);
	refresh_meta(scan);
	end = (uint64) scan->meta.hashm_maxbucket + 1;
	do
	{
		if (end <= known_end)
			return false;
	} while (!pg_atomic_compare_exchange_u64(&scan->base.shared->known_end,
											 &known_end, end));
	scan->base.next = known_end;
	scan->base.end = end;
	return true;
}

/*
 * visit_put_off
 *		Visit a bucket that a split may be populating, and before it the bucket
 *		that it is populated from.
 *
 * It is this process's turn, and it has nothing pinned.
 */
static void
visit_put_off(HashScan *scan, Bucket bucket)
{
	Buffer		primary;

	delay_point();
	failsafe_notice(scan->base.vacuum);

	primary = lock_bucket(scan, bucket);
	/* bucket 0 comes from no split; if it is marked so, its page is damaged */
	if (bucket > 0 && is_being_populated(primary))
	{
		/* its number without the highest bit */
		Bucket		old = bucket ^ pg_prevpower2_32(bucket);
		Buffer		old_primary;

		UnlockReleaseBuffer(primary);
		old_primary = lock_bucket(scan, old);
		clean_bucket(scan, old, old_primary, false);
		primary = lock_bucket(scan, bucket);
	}
	clean_bucket(scan, bucket, primary, true);
}

/* lock_bucket -- read a bucket's primary page, and wait for a cleanup lock on it. */
static Buffer
lock_bucket(HashScan *scan, Bucket bucket)
{
	Buffer		primary = ReadBufferExtended(scan->base.index, MAIN_FORKNUM,
											 BUCKET_TO_BLKNO(&scan->meta, bucket),
											 RBM_NORMAL, vacuum_strategy(scan->base.vacuum));

	/* this may be a bucket of another member's ranges */
	Assert(!scan->base.has_stream);
	LockBufferForCleanup(primary);
	_hash_checkpage(scan->base.index, primary, LH_BUCKET_PAGE);
	return primary;
}

/* is_being_populated -- is it marked so?  Its primary page is locked. */
static bool
is_being_populated(Buffer primary)
{
	return H_BUCKET_BEING_POPULATED(HashPageGetOpaque(BufferGetPage(primary)));
}

/*
 * clean_bucket
 *		Delete the entries of dead TIDs from a bucket, and those that a split has
 *		copied elsewhere; squeeze the rest together.
 *
 * The caller has a cleanup lock on the primary page; this releases lock and pin.
 */
static void
clean_bucket(HashScan *scan, Bucket bucket, Buffer primary, bool counts)
{
	BlockNumber blkno = BufferGetBlockNumber(primary);
	BucketVisit visit = {.bucket = bucket,.primary = primary,.counts = counts};

	Assert(compat_buffer_is_locked_exclusively(primary));
	check_bucket(scan, &visit, primary);
	visit.split_cleanup = !visit.damaged && needs_split_cleanup(scan, primary);
	clean_chain(scan, &visit);
	if (visit.split_cleanup)
		end_split_cleanup(scan, primary);

	/*
	 * Scans that have come meanwhile rely on where tuples are.  Squeezing
	 * goes back by links.
	 */
	if (visit.dirty && !visit.damaged && IsBufferCleanupOK(primary))
		_hash_squeezebucket(scan->base.index, bucket, blkno, primary,
							vacuum_strategy(scan->base.vacuum));
	else
		LockBuffer(primary, BUFFER_LOCK_UNLOCK);
	ReleaseBuffer(primary);

	/* not while a page is locked */
	if (scan->base.pages_done - scan->pages_told >= PROGRESS_BLOCKS)
	{
		scan->pages_told = scan->base.pages_done;
		progress_blocks_done(scan->base.pages_done);
		wal_keep_pace();
	}
}

/*
 * needs_split_cleanup
 *		Has a split copied tuples of this bucket elsewhere that are still here?
 *
 * The caller has the primary page locked, so no split can begin.  If the bucket was
 * split after we copied the metapage, copy it again, so that we can tell which
 * tuples these are.
 */
static bool
needs_split_cleanup(HashScan *scan, Buffer primary)
{
	HashPageOpaque opaque = HashPageGetOpaque(BufferGetPage(primary));

	/* while the split goes on, scans need them */
	if (!H_NEEDS_SPLIT_CLEANUP(opaque) || H_BUCKET_BEING_SPLIT(opaque))
		return false;

	/* on a primary page this is the last bucket's number when it was split */
	if (opaque->hasho_prevblkno > scan->meta.hashm_maxbucket)
		refresh_meta(scan);
	return true;
}

/*
 * clean_chain
 *		Pass over the pages of a bucket, each locked before the last one is
 *		released; return with the primary page locked.
 */
static void
clean_chain(HashScan *scan, BucketVisit *visit)
{
	Buffer		buffer = visit->primary;
	LinkWalk	walk = {.index = scan->base.index};

	for (;;)
	{
		BlockNumber blkno = BufferGetBlockNumber(buffer);
		BlockNumber next;
		Buffer		next_buffer;

		hash_clean_page(scan, visit, buffer);
		scan->base.pages_done++;

		next = HashPageGetOpaque(BufferGetPage(buffer))->hasho_nextblkno;
		if (!BlockNumberIsValid(next))
			break;
		link_walk_step(&walk, blkno, next, ERROR);
		next_buffer = _hash_getbuf_with_strategy(scan->base.index, next, HASH_WRITE,
												 LH_OVERFLOW_PAGE,
												 vacuum_strategy(scan->base.vacuum));
		check_link_back(scan, visit, next_buffer, blkno);
		check_bucket(scan, visit, next_buffer);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		if (buffer != visit->primary)
			ReleaseBuffer(buffer);
		buffer = next_buffer;
	}

	if (buffer != visit->primary)
	{
		UnlockReleaseBuffer(buffer);
		LockBuffer(visit->primary, BUFFER_LOCK_EXCLUSIVE);
	}
}

/*
 * check_bucket
 *		Is a locked page one of the bucket whose chain leads to it?
 *
 * Dead entries can be deleted from another bucket's page, too, but nothing else:
 * the split cleanup would take all the rest of such a page for moved tuples.
 */
static void
check_bucket(HashScan *scan, BucketVisit *visit, Buffer buffer)
{
	Bucket		bucket = HashPageGetOpaque(BufferGetPage(buffer))->hasho_bucket;

	if (likely(bucket == visit->bucket))
		return;
	visit->split_cleanup = false;
	if (visit->damaged)
		return;
	visit->damaged = true;
	ereport(LOG,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("block %u of index \"%s\" is of bucket %u, and bucket %u leads to it",
					BufferGetBlockNumber(buffer), RelationGetRelationName(scan->base.index),
					bucket, visit->bucket),
			 errhint("Please REINDEX it.")));
}

/* check_link_back -- does an overflow page, which is locked, lead back to the one before it? */
static void
check_link_back(HashScan *scan, BucketVisit *visit, Buffer buffer, BlockNumber before)
{
	BlockNumber back = HashPageGetOpaque(BufferGetPage(buffer))->hasho_prevblkno;

	if (back == before || visit->damaged)
		return;
	visit->damaged = true;
	ereport(LOG,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("block %u of index \"%s\" comes after block %u, and leads back to block %u",
					BufferGetBlockNumber(buffer), RelationGetRelationName(scan->base.index), before, back),
			 errhint("Please REINDEX it.")));
}

/* hash_clean_page -- delete from one page of a bucket, and count what is left. */
static void
hash_clean_page(HashScan *scan, BucketVisit *visit, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	OffsetNumber deletable[MaxIndexTuplesPerPage];
	int			ndeletable = 0;
	int			nitems = PageGetMaxOffsetNumber(page);
	int			ndead = match_page(scan, buffer);

	/*
	 * match_page has found each header in front of the special space, which
	 * is longer than a key
	 */
	if (visit->split_cleanup)
		for (int i = 0; i < nitems; i++)
		{
			ItemId		item = PageGetItemId(page, FirstOffsetNumber + i);
			uint32		key = _hash_get_indextuple_hashkey((IndexTuple) PageGetItem(page, item));

			if (scan->dead[i] ||
				_hash_hashkey2bucket(key, scan->meta.hashm_maxbucket, scan->meta.hashm_highmask,
									 scan->meta.hashm_lowmask) != visit->bucket)
				deletable[ndeletable++] = FirstOffsetNumber + i;
		}
	else
		for (int i = 0; ndeletable < ndead; i++)
		{
			/* without a branch that a processor can't predict */
			deletable[ndeletable] = FirstOffsetNumber + i;
			ndeletable += scan->dead[i];
		}

	Assert(ndead <= ndeletable && ndeletable <= nitems);
	scan->base.stats.tuples_removed += ndead;
	if (visit->counts)
		scan->base.stats.num_index_tuples += nitems - ndeletable;
	if (ndeletable > 0)
		delete_items(scan, visit, buffer, deletable, ndeletable, ndead > 0);
}

/* match_page -- look up all TIDs of a page; return how many are dead. */
static int
match_page(HashScan *scan, Buffer buffer)
{
	Page		page = BufferGetPage(buffer);
	BlockNumber blkno = BufferGetBlockNumber(buffer);
	int			nitems = PageGetMaxOffsetNumber(page);

	if (nitems > MaxIndexTuplesPerPage)
		index_report_page(scan->base.index, blkno);
	for (int i = 0; i < nitems; i++)
		scan->tids[i] = index_tuple_at(scan->base.index, blkno, page, FirstOffsetNumber + i)->t_tid;
	return dead_tids_match(scan->base.vacuum->dead_tids, scan->tids, nitems, scan->dead);
}

/*
 * delete_items
 *		Delete items from a page of a bucket, and log it.
 *
 * Replay needs a cleanup lock on the primary page, as we did, so the record names
 * that page, too.
 */
static void
delete_items(HashScan *scan, BucketVisit *visit, Buffer buffer,
			 OffsetNumber *deletable, int ndeletable, bool any_dead)
{
	Page		page = BufferGetPage(buffer);
	HashPageOpaque opaque = HashPageGetOpaque(page);
	bool		clear_dead_marking = any_dead && H_HAS_DEAD_TUPLES(opaque);

	Assert(compat_buffer_is_locked_exclusively(buffer));
	index_check_items(scan->base.index, buffer);
	START_CRIT_SECTION();

	PageIndexMultiDelete(page, deletable, ndeletable);
	if (clear_dead_marking)
		opaque->hasho_flag &= ~LH_PAGE_HAS_DEAD_TUPLES;
	MarkBufferDirty(buffer);
	visit->dirty = true;

	if (RelationNeedsWAL(scan->base.index))
	{
		xl_hash_delete record = {
			.clear_dead_marking = clear_dead_marking,
			.is_primary_bucket_page = (buffer == visit->primary)
		};

		XLogBeginInsert();
		XLogRegisterData((char *) &record, SizeOfHashDelete);
		if (!record.is_primary_bucket_page)
			XLogRegisterBuffer(0, visit->primary,
							   REGBUF_STANDARD | REGBUF_NO_IMAGE | REGBUF_NO_CHANGE);
		XLogRegisterBuffer(1, buffer, REGBUF_STANDARD);
		XLogRegisterBufData(1, (char *) deletable, ndeletable * sizeof(OffsetNumber));
		PageSetLSN(page, XLogInsert(RM_HASH_ID, XLOG_HASH_DELETE));
	}
	else
		compat_set_hash_lsn(scan->base.index, page);

	END_CRIT_SECTION();
}

/*
 * end_split_cleanup
 *		Note in the locked primary page that nothing of the last split is left.
 *
 * This comes before squeezing, which may fail: then no later visit need look for those
 * tuples again.
 */
static void
end_split_cleanup(HashScan *scan, Buffer primary)
{
	Page		page = BufferGetPage(primary);

	Assert(compat_buffer_is_locked_exclusively(primary));
	START_CRIT_SECTION();

	HashPageGetOpaque(page)->hasho_flag &= ~LH_BUCKET_NEEDS_SPLIT_CLEANUP;
	MarkBufferDirty(primary);

	if (RelationNeedsWAL(scan->base.index))
	{
		XLogBeginInsert();
		XLogRegisterBuffer(0, primary, REGBUF_STANDARD);
		PageSetLSN(page, XLogInsert(RM_HASH_ID, XLOG_HASH_SPLIT_CLEANUP));
	}
	else
		compat_set_hash_lsn(scan->base.index, page);

	END_CRIT_SECTION();
}
