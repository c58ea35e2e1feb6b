/*-------------------------------------------------------------------------
 *
 * ring_pages.c
 *	  Pages that a process has vacuumed in its ring, written several at a time.
 *
 * VACUUM reads a large table with a ring of buffers.  When the ring comes round to a
 * buffer whose page was changed, the server writes that page, a page a system call.  In
 * a table that is larger than memory most of VACUUM's time goes into these calls.  So a
 * process remembers the pages that it has visited.  Before the ring comes round to them
 * it writes those with consecutive blocks together, up to io_combine_limit.
 *
 * When
 * ----
 * The ring's buffers are reused in the order in which blocks are asked for.  A read
 * stream asks for up to half a ring of blocks ahead.  So a page must be written before
 * another half ring has been visited.  Pages are remembered until there are half a ring
 * of them, and then the older half of these is written.  WAL up to the page's LSN has to
 * be flushed first, as always.  As the newer half waits, one flush is enough for two such
 * turns.
 *
 * Only pages that the ring would write: if most of the pages visited since the last turn
 * were in shared buffers already, nothing is written.  Others have use for these pages,
 * or VACUUM comes back to them, so it is the checkpointer that writes them.
 *
 * How
 * ---
 * As the server's own routine does it.  A page that somebody has pinned or locked, or
 * that is in use (by its usage count, as the ring has it), or that has been written
 * meanwhile, is left to the server.  Pages are locked conditionally, as the process holds
 * locks on several: it never waits for a page with a page locked.  The lock is exclusive,
 * so nobody changes a hint bit while the checksum is set and the page is written.  WAL is
 * flushed before, with nothing locked; a page that has got a newer LSN meanwhile is left
 * to the server.
 *
 * If writing fails, the error is raised as by the server's routine.  The resource owner
 * ends the I/O and leaves the pages dirty.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "commands/vacuum.h"
#include "common/relpath.h"
#include "executor/instrument.h"
#include "pgstat.h"
#include "port/pg_iovec.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/fd.h"
#include "storage/smgr.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/ring_pages.h"

#if COMPAT_WRITES_TOGETHER

/* The least and the most pages of a turn.  With fewer, runs are too short to matter. */
#define MIN_TURN			16
#define MAX_TURN			256

typedef struct RingPage
{
	BlockNumber blkno;
	Buffer		buffer;
	bool		is_due;			/* in this turn */
} RingPage;

struct RingPages
{
	Relation	rel;			/* of the pages, or NULL */
	int64		reads_before;	/* of this process, when the last turn ended */
	int			turn;			/* pages that are written in one */
	int			npages;
	RingPage	pages[FLEXIBLE_ARRAY_MEMBER];	/* 2 * turn */
};

/* Pages that are being written */
typedef struct Run
{
	Relation	rel;
	BlockNumber start;
	int			n;
	Buffer		buffers[PG_IOV_MAX];
} Run;

static void forget_pages(RingPages *ring, int n);
static bool were_read(RingPages *ring);
static void write_turn(RingPages *ring);
static XLogRecPtr find_due(RingPages *ring);
static bool lock_if_due(Relation rel, const RingPage *page);
static void unlock(Buffer buffer);
static bool add_to_run(Run *run, const RingPage *page, XLogRecPtr flushed);
static void write_run(Run *run);
static void say_which(void *run);

/* ring_pages_begin -- see ring_pages.h. */
RingPages *
ring_pages_begin(int ring_nbuffers)
{
	int			turn = Min(ring_nbuffers / 4, MAX_TURN);
	RingPages  *ring;

	if (turn < MIN_TURN)
		return NULL;
	turn = DEBUG_LIMIT(ring_turn, turn);
	ring = palloc(offsetof(RingPages, pages) + 2 * turn * sizeof(RingPage));
	ring->rel = NULL;
	ring->reads_before = pgBufferUsage.shared_blks_read;
	ring->turn = turn;
	ring->npages = 0;
	return ring;
}

/* ring_pages_visited -- see ring_pages.h. */
void
ring_pages_visited(RingPages *ring, Relation rel, BlockNumber blkno, Buffer buffer)
{
	RingPage   *page;

	/* in the failsafe there is no ring */
	if (ring == NULL || VacuumFailsafeActive || BufferIsLocal(buffer))
		return;
	if (ring->rel != rel)
		ring->npages = 0;
	ring->rel = rel;

	Assert(ring->npages < 2 * ring->turn);
	page = &ring->pages[ring->npages++];
	page->blkno = blkno;
	page->buffer = buffer;
	page->is_due = false;
	if (ring->npages < 2 * ring->turn)
		return;
	if (were_read(ring))
		write_turn(ring);
	forget_pages(ring, ring->turn);
}

/* forget_pages -- the first n of them. */
static void
forget_pages(RingPages *ring, int n)
{
	Assert(n <= ring->npages);
	ring->npages -= n;
	memmove(ring->pages, ring->pages + n, ring->npages * sizeof(RingPage));
}

/*
 * were_read
 *		Has this process read most of the pages of the last turn from disk?
 */
static bool
were_read(RingPages *ring)
{
	int64		reads = pgBufferUsage.shared_blks_read - ring->reads_before;

	ring->reads_before = pgBufferUsage.shared_blks_read;
	return reads >= ring->turn * 3 / 4 || DEBUG_LIMIT(ring_turn, 0) > 0;
}

/* write_turn -- write the dirty ones of the older pages. */
static void
write_turn(RingPages *ring)
{
	XLogRecPtr	flushed = find_due(ring);
	int			most = Min(Min(io_combine_limit, PG_IOV_MAX), compat_additional_pins());
	Run			run = {.rel = ring->rel};

	if (most < 2)
		return;
	XLogFlush(flushed);
	for (int i = 0; i < ring->turn; i++)
	{
		const RingPage *page = &ring->pages[i];

		if (run.n > 0 &&
			(run.n == most || !page->is_due || page->blkno != run.start + run.n ||
			 page->blkno % RELSEG_SIZE == 0))
			write_run(&run);
		if (page->is_due && !add_to_run(&run, page, flushed) && run.n > 0)
			write_run(&run);
	}
	if (run.n > 0)
		write_run(&run);
}

/*
 * find_due
 *		Which of the older pages are to be written?  Returns up to where WAL has to be
 *		flushed for them.
 */
static XLogRecPtr
find_due(RingPages *ring)
{
	XLogRecPtr	last = InvalidXLogRecPtr;

	for (int i = 0; i < ring->turn; i++)
	{
		RingPage   *page = &ring->pages[i];

		page->is_due = lock_if_due(ring->rel, page);
		if (!page->is_due)
			continue;
		if (BufferIsPermanent(page->buffer))
			last = Max(last, PageGetLSN(BufferGetPage(page->buffer)));
		unlock(page->buffer);
	}
	return last;
}

/*
 * lock_if_due
 *		Pin and lock a page, if it is still there, is dirty, and nobody has use for it.
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
	unlock(page->buffer);
	return false;
}

/* unlock -- undo lock_if_due. */
static void
unlock(Buffer buffer)
{
	UnlockReleaseBuffer(buffer);
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
		unlock(page->buffer);
		return false;
	}
	if (run->n == 0)
		run->start = page->blkno;
	run->buffers[run->n++] = page->buffer;
	return true;
}

/* write_run -- write the pages, and unlock them.  The run is empty then. */
static void
write_run(Run *run)
{
	SMgrRelation smgr = RelationGetSmgr(run->rel);
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
	smgrwritev(smgr, MAIN_FORKNUM, run->start, pages, run->n, false);
	compat_count_write(start, run->n);
	pgBufferUsage.shared_blks_written += run->n;
	for (int i = 0; i < run->n; i++)
	{
		compat_end_write(run->buffers[i]);
		unlock(run->buffers[i]);
	}
	if (backend_flush_after > 0 && (io_direct_flags & IO_DIRECT_DATA) == 0)
		smgrwriteback(smgr, MAIN_FORKNUM, run->start, run->n);
	error_context_stack = context.previous;
	run->n = 0;
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
