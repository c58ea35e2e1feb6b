/*-------------------------------------------------------------------------
 *
 * btree_delete.c
 *	  Deletion of empty pages of btrees, by the members of a team in turns.
 *
 * Visitors only note which leaf pages are empty.  When the whole team is through with all
 * indexes, each member deletes those that it found, while the heap is vacuumed.  README.md
 * says which links are looked at before a page is deleted.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/indexfsm.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "compat.h"
#include "debug_point.h"
#include "engine/index/btree_delete.h"
#include "engine/index/index_kind.h"
#include "engine/index/link_walk.h"
#include "guards/guards.h"
#include "machine/wal_writer.h"
#include "pace/pace.h"

static void delete_btree_page(TableVacuum *vacuum, BTVacState *state,
							  BlockNumber blkno);
static Buffer lock_page(TableVacuum *vacuum, BTVacState *state, BlockNumber blkno, int mode);
static bool clear_right_side(TableVacuum *vacuum, BTVacState *state,
							 BlockNumber blkno);
static void delete_locked(TableVacuum *vacuum, BTVacState *state, Buffer buffer);
static bool siblings_agree(TableVacuum *vacuum, BTVacState *state, BlockNumber left,
						   BlockNumber blkno, BlockNumber right);

/*
 * btree_has_empty_pages
 *		Has this process found empty pages that it can delete now?
 *
 * Not while another process deletes pages, unless this one may wait for that.
 */
bool
btree_has_empty_pages(TableVacuum *vacuum, int number, bool wait)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);

	Assert(number >= 0 && number < vacuum->nindexes);
	return vacuum->empty_pages[number].count > 0 &&
		(wait || pg_atomic_read_u32(&shared->turn_taken) == 0);
}

/*
 * btree_delete_pages
 *		Take the leaf pages that this process found empty out of the tree, and
 *		forget them.
 *
 * No member may be visiting pages of the index any more.  If another one is
 * deleting pages, wait for it to end, or leave these for later.  Unless it may wait,
 * this process has pages of the heap pinned; so it leaves them when a pause is due, too.
 */
void
btree_delete_pages(TableVacuum *vacuum, int number, bool wait)
{
	IndexShared *shared = vacuum_index(vacuum->shared, number);
	BlockList  *empty_pages = &vacuum->empty_pages[number];
	Relation	index = vacuum->indexes[number];
	IndexBulkDeleteResult stats = {0};
	IndexVacuumInfo info;
	BTVacState	state = {0};

	Assert(CritSectionCount == 0);
	Assert(!vacuum->shared->in_cleanup);
	Assert(CheckRelationLockedByMe(index, RowExclusiveLock, true));
	Assert(empty_pages->count > 0);

	if (!index_take_turn(shared, wait))
		return;

	index_fill_info(vacuum, number, &info);
	state.info = &info;
	state.stats = &stats;
	state.pagedelcontext = AllocSetContextCreate(CurrentMemoryContext,
												 "cyclone page deletion",
												 ALLOCSET_DEFAULT_SIZES);
	_bt_pendingfsm_init(index, &state, false);

	while (empty_pages->count > 0 && (wait || !guards_hold_is_due()))
	{
		delay_point();
		failsafe_notice(vacuum);
		if (empty_pages->count % PROGRESS_BLOCKS == 0)
			wal_keep_pace();
		delete_btree_page(vacuum, &state, empty_pages->blocks[empty_pages->count - 1]);
		empty_pages->count--;
	}

	/*
	 * _bt_pagedel leaves some for a later visit to count, which never comes
	 */
	stats.pages_deleted = stats.pages_newly_deleted;
	_bt_pendingfsm_finalize(index, &state);
	index_add_stats(shared, &stats);
	index_end_turn(shared);

	MemoryContextDelete(state.pagedelcontext);
	if (empty_pages->count == 0)
		block_list_free(empty_pages);
}

/* delete_btree_page -- take a leaf page out of the tree, if it is still empty. */
static void
delete_btree_page(TableVacuum *vacuum, BTVacState *state, BlockNumber blkno)
{
	Buffer		buffer = lock_page(vacuum, state, blkno, BUFFER_LOCK_EXCLUSIVE);
	Page		page = BufferGetPage(buffer);
	BTPageOpaque opaque = PageIsNew(page) ? NULL : BTPageGetOpaque(page);

	/* It may have been deleted already, with its left sibling. */
	if (opaque == NULL || !P_ISLEAF(opaque) || P_ISDELETED(opaque))
	{
		UnlockReleaseBuffer(buffer);
		return;
	}

	/* No other process changes which page is to the right of a half-dead one. */
	if (P_ISHALFDEAD(opaque))
	{
		bool		clear;

		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		guards_begin_pins();
		clear = clear_right_side(vacuum, state, blkno);
		guards_end_pins();
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		if (!clear)
		{
			/* the next vacuum will find it */
			UnlockReleaseBuffer(buffer);
			return;
		}
	}
	delete_locked(vacuum, state, buffer);
}

/* lock_page -- read a page and lock it. */
static Buffer
lock_page(TableVacuum *vacuum, BTVacState *state, BlockNumber blkno, int mode)
{
	Buffer		buffer = ReadBufferExtended(state->info->index, MAIN_FORKNUM, blkno,
											RBM_NORMAL, vacuum_strategy(vacuum));

	LockBuffer(buffer, mode);
	return buffer;
}

/*
 * clear_right_side
 *		Delete empty pages to the right of a half-dead one; return false if one
 *		stays.
 */
static bool
clear_right_side(TableVacuum *vacuum, BTVacState *state, BlockNumber blkno)
{
	LinkWalk	walk = {.index = state->info->index};
	BlockNumber tried = P_NONE;
	BlockNumber next = blkno;

	for (;;)
	{
		Buffer		buffer;
		BTPageOpaque opaque;
		BlockNumber here = next;

		delay_point();
		failsafe_notice(vacuum);
		buffer = lock_page(vacuum, state, here, BUFFER_LOCK_EXCLUSIVE);
		_bt_checkpage(state->info->index, buffer);
		opaque = BTPageGetOpaque(BufferGetPage(buffer));

		if (P_ISHALFDEAD(opaque) && !P_RIGHTMOST(opaque))
		{
			next = opaque->btpo_next;
			UnlockReleaseBuffer(buffer);
			if (!link_walk_step(&walk, here, next, LOG))
				return false;
			continue;
		}
		if (P_RIGHTMOST(opaque) || !P_ISLEAF(opaque) || P_ISDELETED(opaque) ||
			P_FIRSTDATAKEY(opaque) <= PageGetMaxOffsetNumber(BufferGetPage(buffer)))
		{
			UnlockReleaseBuffer(buffer);
			return true;
		}
		if (here == tried)
		{
			UnlockReleaseBuffer(buffer);
			return false;
		}
		tried = here;
		delete_locked(vacuum, state, buffer);
		/* which page is to the right now? */
		next = blkno;
		walk.steps = 0;
	}
}

/*
 * delete_locked
 *		Delete a locked leaf page, unless links of its siblings are damaged, and
 *		release it.
 */
static void
delete_locked(TableVacuum *vacuum, BTVacState *state, Buffer buffer)
{
	BTPageOpaque opaque = BTPageGetOpaque(BufferGetPage(buffer));
	BlockNumber left = opaque->btpo_prev;
	BlockNumber right = opaque->btpo_next;
	MemoryContext old;

	Assert(compat_buffer_is_locked_exclusively(buffer));
	Assert(P_ISLEAF(opaque));
	Assert(!P_ISDELETED(opaque));

	/* siblings are locked from left to right */
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	if (!siblings_agree(vacuum, state, left, BufferGetBlockNumber(buffer), right))
	{
		ReleaseBuffer(buffer);
		return;
	}
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);

	old = MemoryContextSwitchTo(state->pagedelcontext);
	_bt_pagedel(state->info->index, buffer, state);
	MemoryContextSwitchTo(old);
	MemoryContextReset(state->pagedelcontext);
}

/*
 * siblings_agree
 *		Can _bt_pagedel go by the links of a page and its left siblings?  If not,
 *		say so.
 *
 * The links were left and right when the page was locked.  If it has been split
 * since, or its left sibling has, there are more pages between, and no harm is done.
 */
static bool
siblings_agree(TableVacuum *vacuum, BTVacState *state, BlockNumber left, BlockNumber blkno,
			   BlockNumber right)
{
	Relation	index = state->info->index;
	LinkWalk	walk = {.index = index};
	BlockNumber here = left;
	bool		found = left == P_NONE;

	if (right == P_NONE)
		return true;			/* the last page of a level isn't deleted */
	if (!link_walk_step(&walk, blkno, right, LOG) ||
		(left != P_NONE && !link_walk_step(&walk, blkno, left, LOG)))
		return false;

	walk.steps = 0;
	while (!found && here != P_NONE)
	{
		Buffer		buffer;
		BTPageOpaque opaque;
		BlockNumber next;

		failsafe_notice(vacuum);
		buffer = lock_page(vacuum, state, here, BUFFER_LOCK_SHARE);
		_bt_checkpage(index, buffer);
		opaque = BTPageGetOpaque(BufferGetPage(buffer));
		next = P_ISDELETED(opaque) ? P_NONE : opaque->btpo_next;
		UnlockReleaseBuffer(buffer);

		found = next == blkno && here != right;
		if (next != P_NONE && !link_walk_step(&walk, here, next, LOG))
			return false;
		if (!found)
			here = next;
		CHECK_FOR_INTERRUPTS();
	}
	if (!found)
		ereport(LOG,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("links from block %u of index \"%s\" do not lead to its right sibling, block %u",
						left, RelationGetRelationName(index), blkno),
				 errhint("Please REINDEX it.")));
	return found;
}
