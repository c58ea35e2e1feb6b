/*-------------------------------------------------------------------------
 *
 * ring_pages.c
 *	  Pages that a process has vacuumed in its ring, written several at a time.
 *
 * VACUUM reads a large table with a ring of buffers.  When the ring comes round to a
 * buffer whose page was changed, the server writes that page, a page a system call.  So a
 * process remembers the pages that it has visited, and writes those with consecutive blocks
 * together before.  README.md says when, how, and which pages are left to the server.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "commands/vacuum.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_iovec.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/fd.h"
#include "storage/smgr.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/ring_pages.h"
#include "pace/pace.h"

#if COMPAT_WRITES_TOGETHER

/* The least and the most pages of a turn, and the most that are remembered */
#define MIN_TURN			15
#define MAX_TURN			256
#define MAX_REMEMBERED		1024

/*
 * A run has at most this part of the ring's buffers pinned: 16 of the usual 256, as
 * many as io_combine_limit has by default.
 */
#define RUN_SHARE			16

typedef struct RingPage
{
	BlockNumber blkno;
	Buffer		buffer;
	bool		is_due;
} RingPage;

struct RingPages
{
	Relation	rel;			/* of the pages, or NULL */
	int			turn;			/* pages that are written in one */
	int			most;			/* pages of a run */
	int64		read_before;	/* blocks that the process had read when the
								 * ring was full */
	int64		reads;			/* and when the last turn ended */
	int			visits;			/* since then */

	/* those that are remembered, in a circle */
	int			size;
	int			first;
	int			count;
	RingPage	pages[FLEXIBLE_ARRAY_MEMBER];
};

/* The pages of a turn */
typedef struct Turn
{
	Relation	rel;
	int			npages;
	RingPage	pages[MAX_TURN];
} Turn;

/* Pages that are being written: locked, and their I/O has begun */
typedef struct Run
{
	Relation	rel;
	BlockNumber start;
	int			n;
	Buffer		buffers[PG_IOV_MAX];
} Run;

static void take_oldest(RingPages *ring, Turn *turn);
static bool were_read(RingPages *ring);
static void write_turn(Turn *turn, int most);
static int	fill_run(Run *run, const Turn *turn, int next, int most, XLogRecPtr flushed);
static XLogRecPtr find_due(Turn *turn);
static bool lock_if_due(Relation rel, const RingPage *page);
static bool add_to_run(Run *run, const RingPage *page, XLogRecPtr flushed);
static void write_ring_run(Run *run);
static void finish_run(Run *run);
static void give_up_run(Run *run);
static void say_which(void *run);

/* ring_pages_begin -- see ring_pages.h. */
RingPages *
ring_pages_begin(int ring_nbuffers)
{
	/* a stream may be half a ring and two pages ahead of the one visited */
	int			size = Min(ring_nbuffers / 2 - 2, MAX_REMEMBERED);
	int			turn = Min(size / 2, MAX_TURN);
	int			wanted = DEBUG_LIMIT(ring_turn, turn);
	RingPages  *ring;

	Assert(ring_nbuffers >= 0);
	if (turn < MIN_TURN)
		return NULL;
	if (wanted < turn)
	{
		turn = wanted;
		size = 2 * turn;
	}
	ring = palloc0(offsetof(RingPages, pages) + size * sizeof(RingPage));
	ring->turn = turn;
	ring->most = Min(ring_nbuffers / RUN_SHARE, PG_IOV_MAX);
	ring->reads = pgBufferUsage.shared_blks_read;
	ring->read_before = ring->reads + ring_nbuffers;
	ring->size = size;
	return ring;
}

/* ring_pages_visited -- see ring_pages.h. */
void
ring_pages_visited(RingPages *ring, Relation rel, BlockNumber blkno, Buffer buffer)
{
	RingPage   *page;
	Turn		turn;

	Assert(CritSectionCount == 0 && InterruptHoldoffCount == 0);
	Assert(BlockNumberIsValid(blkno) && BufferIsValid(buffer));

	/* in the failsafe there is no ring */
	if (ring == NULL || VacuumFailsafeActive || BufferIsLocal(buffer))
		return;
	if (ring->rel != rel)
	{
		ring->count = ring->visits = 0;
		ring->reads = pgBufferUsage.shared_blks_read;
		ring->rel = rel;
	}

	Assert(ring->count < ring->size);
	page = &ring->pages[(ring->first + ring->count++) % ring->size];
	page->blkno = blkno;
	page->buffer = buffer;
	ring->visits++;
	if (ring->count < ring->size)
		return;
	take_oldest(ring, &turn);
	if (were_read(ring))
		write_turn(&turn, Min(ring->most, io_combine_limit));
}

/* take_oldest -- forget the oldest pages: these are the turn. */
static void
take_oldest(RingPages *ring, Turn *turn)
{
	Assert(ring->turn <= MAX_TURN && ring->turn <= ring->count);
	turn->rel = ring->rel;
	turn->npages = ring->turn;
	for (int i = 0; i < turn->npages; i++)
		turn->pages[i] = ring->pages[(ring->first + i) % ring->size];
	ring->first = (ring->first + turn->npages) % ring->size;
	ring->count -= turn->npages;
}

/*
 * were_read
 *		Is the ring full, and has this process read most of the pages that it has visited
 *		since the last turn from disk?
 */
static bool
were_read(RingPages *ring)
{
	const int64 reads = pgBufferUsage.shared_blks_read;
	bool		most = (reads - ring->reads) * 4 >= (int64) ring->visits * 3;

	ring->reads = reads;
	ring->visits = 0;
	return (most && reads >= ring->read_before) || DEBUG_LIMIT(ring_turn, 0) > 0;
}

/*
 * write_turn
 *		Write the dirty ones of these pages, this many at a time.
 *
 * Between two runs it spends time and cost as between two pages that are visited.
 */
static void
write_turn(Turn *turn, int most)
{
	Run			run = {.rel = turn->rel};
	XLogRecPtr	flushed;
	int			next = 0;

	if (most < 2)
		return;
	flushed = find_due(turn);
	XLogFlush(flushed);
	while (next < turn->npages)
	{
		PG_TRY();
		{
			next = fill_run(&run, turn, next, most, flushed);
			if (run.n > 0)
				write_ring_run(&run);
		}
		PG_CATCH();
		{
			give_up_run(&run);
			PG_RE_THROW();
		}
		PG_END_TRY();
		finish_run(&run);
	}
}

/*
 * fill_run
 *		Find the next pages with consecutive blocks, from a place in the turn on, and begin
 *		to write them.  Returns the place behind them; there may be none.
 */
static int
fill_run(Run *run, const Turn *turn, int next, int most, XLogRecPtr flushed)
{
	Assert(run->n == 0 && most <= PG_IOV_MAX);

	for (; next < turn->npages && run->n < most; next++)
	{
		const RingPage *page = &turn->pages[next];

		if (run->n > 0 && (page->blkno != run->start + run->n || page->blkno % RELSEG_SIZE == 0))
			return next;
		if ((!page->is_due || !add_to_run(run, page, flushed)) && run->n > 0)
			return next + 1;
	}
	return next;
}

/*
 * find_due
 *		Which of the pages are to be written?  Returns up to where WAL has to be flushed for
 *		them.
 *
 * A page with an LSN that there isn't yet is damaged, or has been changed just now.  It is
 * left to the server, whose error names it.
 */
static XLogRecPtr
find_due(Turn *turn)
{
	const XLogRecPtr inserted = GetXLogInsertRecPtr();
	XLogRecPtr	last = InvalidXLogRecPtr;

	for (int i = 0; i < turn->npages; i++)
	{
		RingPage   *page = &turn->pages[i];

		page->is_due = lock_if_due(turn->rel, page);
		if (!page->is_due)
			continue;
		if (BufferIsPermanent(page->buffer))
		{
			XLogRecPtr	lsn = PageGetLSN(BufferGetPage(page->buffer));

			page->is_due = lsn <= inserted;
			if (page->is_due)
				last = Max(last, lsn);
		}
		UnlockReleaseBuffer(page->buffer);
	}
	return last;
}

/*
 * lock_if_due
 *		Pin and lock a page, if it is still there, is dirty, and no process has use for it.
 */
static bool
lock_if_due(Relation rel, const RingPage *page)
{
	const int64 hits = pgBufferUsage.shared_blks_hit;
	bool		pinned;

	if (!compat_buffer_is_idle_and_dirty(page->buffer))
		return false;
	pinned = compat_pin_recent(rel, page->blkno, page->buffer);
	pgBufferUsage.shared_blks_hit = hits;	/* VACUUM has counted it */
	if (!pinned)
		return false;
	if (!ConditionalLockBuffer(page->buffer))
	{
		ReleaseBuffer(page->buffer);
		return false;
	}
	if (BufferIsDirty(page->buffer))
		return true;
	UnlockReleaseBuffer(page->buffer);
	return false;
}

/* add_to_run -- lock a page and begin to write it; false if it is to be left to the server. */
static bool
add_to_run(Run *run, const RingPage *page, XLogRecPtr flushed)
{
	Assert(run->n < PG_IOV_MAX);
	Assert(run->n == 0 || page->blkno == run->start + run->n);

	if (!lock_if_due(run->rel, page))
		return false;
	if ((BufferIsPermanent(page->buffer) && PageGetLSN(BufferGetPage(page->buffer)) > flushed) ||
		!compat_start_write(page->buffer))
	{
		UnlockReleaseBuffer(page->buffer);
		return false;
	}
	if (run->n == 0)
		run->start = page->blkno;
	run->buffers[run->n++] = page->buffer;
	return true;
}

/* write_ring_run -- hand the pages to the system. */
static void
write_ring_run(Run *run)
{
	ErrorContextCallback context = {.callback = say_which,.arg = run,.previous = error_context_stack};
	const void *pages[PG_IOV_MAX];
	instr_time	start;

	error_context_stack = &context;
	for (int i = 0; i < run->n; i++)
	{
		Page		page = BufferGetPage(run->buffers[i]);

		Assert(compat_buffer_is_locked_exclusively(run->buffers[i]));
		Assert(!BufferIsPermanent(run->buffers[i]) || !XLogNeedsFlush(PageGetLSN(page)));
		PageSetChecksum(page, run->start + i);
		pages[i] = page;
	}
	start = pgstat_prepare_io_time(track_io_timing);
	smgrwritev(RelationGetSmgr(run->rel), MAIN_FORKNUM, run->start, pages, run->n, false);
	compat_count_write(start, run->n);
	pgBufferUsage.shared_blks_written += run->n;
	error_context_stack = context.previous;
}

/* finish_run -- they are clean: unlock them.  The run, which may be empty, is empty then. */
static void
finish_run(Run *run)
{
	const int	n = run->n;

	for (int i = 0; i < n; i++)
	{
		compat_end_write(run->buffers[i], true);
		UnlockReleaseBuffer(run->buffers[i]);
	}
	run->n = 0;
	if (n == 0)
		return;
	if (backend_flush_after > 0 && (io_direct_flags & IO_DIRECT_DATA) == 0)
		smgrwriteback(RelationGetSmgr(run->rel), MAIN_FORKNUM, run->start, n);
	delay_point();
}

/* give_up_run -- after an error: the pages stay dirty, and are unlocked. */
static void
give_up_run(Run *run)
{
	for (int i = 0; i < run->n; i++)
	{
		compat_end_write(run->buffers[i], false);
		HOLD_INTERRUPTS();		/* as the lock did, until the error */
		UnlockReleaseBuffer(run->buffers[i]);
	}
}

/* say_which -- the pages that an error is about. */
static void
say_which(void *run)
{
	const Run  *writing = run;

	errcontext("writing blocks %u to %u of relation \"%s\"", writing->start,
			   writing->start + writing->n - 1, RelationGetRelationName(writing->rel));
}

#else

/* ring_pages_begin -- there are none. */
RingPages *
ring_pages_begin(int ring_nbuffers)
{
	return NULL;
}

/* ring_pages_visited -- the server writes them. */
void
ring_pages_visited(RingPages *ring, Relation rel, BlockNumber blkno, Buffer buffer)
{
	Assert(ring == NULL);
}

#endif							/* COMPAT_WRITES_TOGETHER */
