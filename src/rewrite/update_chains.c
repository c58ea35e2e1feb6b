/*-------------------------------------------------------------------------
 *
 * update_chains.c
 *	  Copying those versions of rows that are linked with others.
 *
 * An old version of a row that a snapshot may still see points at the newer one.  So the
 * place of the newer one must be known before the old one is written.  The leader does it,
 * in three passes at most:
 *
 *	 1. plan_links passes over the versions, and notes of each newer end its new
 *		place, and of each older end its TID.  When they are sorted, the notes of
 *		a link lie one behind the other.
 *	 2. find_dead finds the older ends that are dead after all.  If there are any,
 *		plan_links does its work again without them.
 *	 3. write_versions passes over the versions once more, in the same order,
 *		and writes them.
 *
 * README.md says what the key of a link is, and which older ends are dead after all.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "debug_point.h"
#include "report/progress.h"
#include "rewrite/link_sort.h"
#include "rewrite/rewrite.h"

/* What a note says of a link, in the order of sorting */
typedef enum LinkEnd
{
	LINK_NEWER_DEAD,
	LINK_NEWER,					/* other: its new place */
	LINK_NEWER_IN_TURN,			/* a newer end that is an older end, too */
	LINK_OLDER,					/* other: its old TID */
} LinkEnd;

/* What a note says of a version's death, in the order of sorting */
typedef enum DeathNote
{
	DEATH_KNOWN,
	DEATH_DEPENDS,				/* it is dead if the other one is */
	DEATH_OF_OTHER,				/* the other one is dead if it is */
} DeathNote;

/* More rounds than any chain can call for */
#define MOST_ROUNDS		64

/* A sorted list that is read along with the versions, by their TIDs */
typedef struct LinkCursor
{
	LinkSort   *sort;			/* NULL: empty */
	bool		has_note;
	LinkNote	note;
} LinkCursor;

typedef struct ChainCopy
{
	TableRewrite *rewrite;
	RewriteCounters *sum;
	TransactionId oldest_xmin;

	/* of a pass */
	NewPlace	place;			/* of the last version */
	int64		ntuples;
	uint64		fingerprint;	/* of what was written, or would be */

	LinkSort   *ends;			/* by the links' keys */
	LinkCursor	newer;			/* older ends, and new places of their newer
								 * ones */
	LinkSort   *deaths;
	int64		ndead;			/* found while planning */
	LinkCursor	dead;			/* older ends that are dead after all, among
								 * others */
} ChainCopy;

static void plan_links(ChainCopy *chains);
static void begin_pass(ChainCopy *chains);
static void end_pass(ChainCopy *chains);
static void plan_version(void *state, HeapTuple tuple, TupleFate fate, uint16 infomask);
static void place_version(ChainCopy *chains, const ItemPointerData *tid, Size len);
static void match_ends(ChainCopy *chains);
static void match_older_end(ChainCopy *chains, const LinkNote *newer, const LinkNote *older);
static void note_death(LinkSort *deaths, DeathNote kind, const ItemPointerData *tid,
					   const ItemPointerData *other);
static void find_dead(ChainCopy *chains);
static LinkSort *follow_deaths(LinkSort *deaths, int64 *nopen);
static bool is_dead_after_all(ChainCopy *chains, HeapTuple tuple, TupleFate fate);
static void write_version(void *state, HeapTuple tuple, TupleFate fate, uint16 infomask);
static void write_copy(ChainCopy *chains, HeapTuple copy, HeapTuple old);
static LinkNote link_note(const ItemPointerData *tid, TransactionId xid, int kind);
static void cursor_begin(LinkCursor *cursor, LinkSort *sort);
static bool cursor_find(LinkCursor *cursor, const ItemPointerData *tid);
static void cursor_end(LinkCursor *cursor);

/* update_chains_copy -- copy the linked versions of the table. */
void
update_chains_copy(TableRewrite *rewrite, RewriteCounters *sum)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "Update chains",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	ChainCopy	chains = {
		.rewrite = rewrite,
		.sum = sum,
		.oldest_xmin = rewrite->shared->heaps[REWRITE_TABLE].oldest_xmin
	};
	uint64		planned;

	Assert(rewrite->new_pages != NULL);
	Assert(rewrite_is_leader(rewrite));
	Assert(sum->tuples_in_chains > 0);

	plan_links(&chains);
	if (chains.ndead > 0)
	{
		find_dead(&chains);
		plan_links(&chains);
		if (chains.ndead > 0)
			elog(ERROR, "more row versions of table \"%s\" are dead than before",
				 RelationGetRelationName(rewrite->old_heaps[REWRITE_TABLE]));
	}
	planned = chains.fingerprint;

	begin_pass(&chains);
	left_tuples_visit(rewrite, write_version, &chains);
	end_pass(&chains);
	if (chains.fingerprint != planned)
		elog(ERROR, "linked row versions of table \"%s\" are not where they were planned",
			 RelationGetRelationName(rewrite->old_heaps[REWRITE_TABLE]));
	cursor_end(&chains.newer);
	cursor_end(&chains.dead);

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/*
 * plan_links
 *		Find out where each older end must point at, and which of them are dead
 *		after all.
 *
 * Leaves chains->newer ready to be read.  chains->deaths has ndead notes of dead
 * older ends, and notes of the versions on which the death of older ones may depend.
 */
static void
plan_links(ChainCopy *chains)
{
	cursor_end(&chains->newer);
	chains->ends = link_sort_begin(maintenance_work_mem / 2, false);
	begin_pass(chains);
	left_tuples_visit(chains->rewrite, plan_version, chains);
	end_pass(chains);

	link_sort_perform(chains->ends);
	match_ends(chains);
	link_sort_end(chains->ends);
	chains->ends = NULL;
	if (chains->ndead == 0)
	{
		link_sort_end(chains->deaths);
		chains->deaths = NULL;
	}
}

/* begin_pass -- before the versions are visited. */
static void
begin_pass(ChainCopy *chains)
{
	TableRewrite *rewrite = chains->rewrite;

	progress_phase(PROGRESS_REWRITE_COPY_CHAINS,
				   heap_copy_left_blocks(rewrite->shared, &rewrite->shared->heaps[REWRITE_TABLE]));
	chains->place = new_pages_place(rewrite->new_pages);
	chains->ntuples = 0;
	chains->fingerprint = 0;
	if (chains->dead.sort != NULL)
	{
		link_sort_rewind(chains->dead.sort);
		cursor_begin(&chains->dead, chains->dead.sort);
	}
}

/* end_pass -- have all versions been seen that the team has counted? */
static void
end_pass(ChainCopy *chains)
{
	if (chains->ntuples != chains->sum->tuples_in_chains)
		elog(ERROR, "found %lld linked row versions in table \"%s\" where there were %lld before",
			 (long long) chains->ntuples,
			 RelationGetRelationName(chains->rewrite->old_heaps[REWRITE_TABLE]),
			 (long long) chains->sum->tuples_in_chains);
}

/* plan_version -- note which ends of links a tuple is. */
static void
plan_version(void *state, HeapTuple tuple, TupleFate fate, uint16 infomask)
{
	ChainCopy  *chains = state;
	HeapTupleHeader header = tuple->t_data;
	bool		is_newer_end = tuple_is_newer_end(header, infomask, chains->oldest_xmin);
	bool		is_older_end;
	LinkNote	note;

	if (!tuple_is_in_chain(tuple, fate, infomask, chains->oldest_xmin))
		return;
	chains->ntuples++;

	if (fate == TUPLE_DEAD || is_dead_after_all(chains, tuple, fate))
	{
		if (is_newer_end)
		{
			note = link_note(&tuple->t_self, HeapTupleHeaderGetRawXmin(header), LINK_NEWER_DEAD);
			link_sort_put(chains->ends, &note);
		}
		return;
	}

	/* a live one is linked with older ones only */
	is_older_end = tuple_is_older_end(tuple, fate, infomask);
	Assert(is_newer_end || is_older_end);

	place_version(chains, &tuple->t_self, tuple_copy_length(chains->rewrite, tuple));
	if (is_newer_end)
	{
		note = link_note(&tuple->t_self, HeapTupleHeaderGetRawXmin(header),
						 is_older_end ? LINK_NEWER_IN_TURN : LINK_NEWER);
		ItemPointerSet(&note.other, chains->place.blkno, chains->place.offset);
		link_sort_put(chains->ends, &note);
	}
	if (is_older_end)
	{
		note = link_note(&header->t_ctid, HeapTupleHeaderGetUpdateXid(header), LINK_OLDER);
		note.other = tuple->t_self;
		link_sort_put(chains->ends, &note);
	}
}

/*
 * place_version
 *		Set chains->place to where a version will be, whose copy has that length.
 *
 * A version that is too big gets a page of its own, as it isn't known how much
 * smaller it will become.
 */
static void
place_version(ChainCopy *chains, const ItemPointerData *tid, Size len)
{
	if (tuple_copy_is_too_big(len))
	{
		new_place_end_page(&chains->place);
		new_place_next(&chains->place, MaxHeapTupleSize);
	}
	else
		new_place_next(&chains->place, len);
	chains->fingerprint = hash_combine64(chains->fingerprint,
										 (uint64) ItemPointerGetBlockNumberNoCheck(tid) << 32 |
										 (uint64) ItemPointerGetOffsetNumberNoCheck(tid) << 16 |
										 len);
}

/*
 * match_ends
 *		Bring the two ends of each link together.
 */
static void
match_ends(ChainCopy *chains)
{
	LinkNote	newer = {0};
	LinkNote	note;

	chains->newer.sort = link_sort_begin(maintenance_work_mem / 4, false);
	chains->deaths = link_sort_begin(maintenance_work_mem / 8, true);
	chains->ndead = 0;
	while (link_sort_next(chains->ends, &note))
	{
		CHECK_FOR_INTERRUPTS();
		if (note.kind != LINK_OLDER)
		{
			/* at each TID there is one tuple */
			Assert(newer.xid != note.xid || !ItemPointerEquals(&newer.tid, &note.tid));
			newer = note;
		}
		else if (newer.xid == note.xid && ItemPointerEquals(&newer.tid, &note.tid))
			match_older_end(chains, &newer, &note);
		else
			match_older_end(chains, NULL, &note);
	}
	link_sort_perform(chains->newer.sort);
	cursor_begin(&chains->newer, chains->newer.sort);
}

/*
 * match_older_end
 *		Note where an older end must point at, or that it is dead, or on which
 *		version its death depends.  newer is NULL if the newer end is gone.
 */
static void
match_older_end(ChainCopy *chains, const LinkNote *newer, const LinkNote *older)
{
	LinkNote	note;

	Assert(TransactionIdIsNormal(older->xid));
	if (newer == NULL && !TransactionIdDidCommit(older->xid))
		return;					/* will point at itself */
	if (newer == NULL || newer->kind == LINK_NEWER_DEAD)
	{
		note_death(chains->deaths, DEATH_KNOWN, &older->other, NULL);
		chains->ndead++;
		return;
	}

	note = link_note(&older->other, InvalidTransactionId, 0);
	note.other = newer->other;
	link_sort_put(chains->newer.sort, &note);
	if (newer->kind == LINK_NEWER_IN_TURN)
	{
		note_death(chains->deaths, DEATH_DEPENDS, &older->other, &newer->tid);
		note_death(chains->deaths, DEATH_OF_OTHER, &newer->tid, &older->other);
	}
}

/* note_death -- add such a note; other may be NULL. */
static void
note_death(LinkSort *deaths, DeathNote kind, const ItemPointerData *tid,
		   const ItemPointerData *other)
{
	LinkNote	note = link_note(tid, InvalidTransactionId, kind);

	if (other != NULL)
		note.other = *other;
	link_sort_put(deaths, &note);
}

/*
 * find_dead
 *		Make chains->dead a list with all older ends that are dead after all.
 *
 * In each round, if a version depends on a second one, and that on a third one, the
 * first comes to depend on the third.  So dependence reaches twice as far down the
 * chain of versions.  A version whose fate is known is finished.  The number of
 * rounds is limited because damaged links may go round in a circle.  Notes on such
 * versions are left in the list: they, and the versions whose links lead there,
 * aren't known to be dead.
 */
static void
find_dead(ChainCopy *chains)
{
	LinkSort   *deaths = chains->deaths;
	int64		nopen;

	link_sort_perform(deaths);
	for (int round = 0; round < MOST_ROUNDS; round++)
	{
		deaths = follow_deaths(deaths, &nopen);
		if (nopen == 0)
			break;
	}
	chains->deaths = NULL;
	cursor_begin(&chains->dead, deaths);
}

/*
 * follow_deaths
 *		One round of find_dead: return a sorted list of what is known now, and free
 *		the old list.  *nopen is how many versions still depend on newer ones.
 */
static LinkSort *
follow_deaths(LinkSort *deaths, int64 *nopen)
{
	LinkSort   *next = link_sort_begin(maintenance_work_mem / 8, true);
	LinkNote	known = {0};	/* the best note on the version in hand */
	LinkNote	note;

	*nopen = 0;
	known.kind = DEATH_OF_OTHER;
	while (link_sort_next(deaths, &note))
	{
		CHECK_FOR_INTERRUPTS();
		if (note.kind == DEATH_KNOWN)
			link_sort_put(next, &note);
		if (note.kind != DEATH_OF_OTHER)
		{
			known = note;
			continue;
		}
		/* a version of which nothing is known isn't dead */
		if (known.kind == DEATH_OF_OTHER || !ItemPointerEquals(&known.tid, &note.tid))
			continue;
		if (known.kind == DEATH_KNOWN)
			note_death(next, DEATH_KNOWN, &note.other, NULL);
		else
		{
			note_death(next, DEATH_DEPENDS, &note.other, &known.other);
			note_death(next, DEATH_OF_OTHER, &known.other, &note.other);
			(*nopen)++;
		}
	}
	link_sort_end(deaths);
	link_sort_perform(next);
	return next;
}

/* is_dead_after_all -- has find_dead found this version dead? */
static bool
is_dead_after_all(ChainCopy *chains, HeapTuple tuple, TupleFate fate)
{
	/* DEATH_KNOWN is the first note on a version */
	return fate == TUPLE_RECENTLY_DEAD && cursor_find(&chains->dead, &tuple->t_self) &&
		chains->dead.note.kind == DEATH_KNOWN;
}

/* write_version -- write a version where it was planned, unless it is dead after all. */
static void
write_version(void *state, HeapTuple tuple, TupleFate fate, uint16 infomask)
{
	ChainCopy  *chains = state;
	RewriteCounters *sum = chains->sum;
	HeapTuple	copy;

	if (!tuple_is_in_chain(tuple, fate, infomask, chains->oldest_xmin))
		return;
	chains->ntuples++;

	if (fate == TUPLE_DEAD)
		return;					/* counted as removed already */
	if (is_dead_after_all(chains, tuple, fate))
	{
		sum->tuples_removed++;
		sum->tuples_kept--;
		sum->tuples_recently_dead--;
		return;
	}

	copy = tuple_copy(chains->rewrite, tuple, infomask);
	if (cursor_find(&chains->newer, &tuple->t_self))
		copy->t_data->t_ctid = chains->newer.note.other;
	write_copy(chains, copy, tuple);
}

/* write_copy -- write the copy of an old version, and free it. */
static void
write_copy(ChainCopy *chains, HeapTuple copy, HeapTuple old)
{
	const ItemPointerData *tid = &old->t_self;
	TableRewrite *rewrite = chains->rewrite;
	NewPages   *pages = rewrite->new_pages;
	bool		is_too_big = tuple_copy_is_too_big(copy->t_len);
	HeapTupleHeader written;
	ItemPointerData new_tid;

	place_version(chains, tid, copy->t_len);
	if (is_too_big)
	{
		chains->sum->tuples_too_big++;
		copy = tuple_copy_make_smaller(rewrite, copy);
		new_pages_end_page(pages);
	}
	written = new_pages_add(pages, copy->t_data, copy->t_len);
	if (DEBUG_FAULT("rewrite-link-change"))
		((char *) written)[copy->t_len - 1] ^= 1;
	heap_copy_note_values(rewrite, copy);
	audit_rewrite_by_leader(rewrite, old, written, copy->t_len);
	new_pages_tid(pages, written, &new_tid);
	if (is_too_big)
		new_pages_end_page(pages);
	if (ItemPointerGetBlockNumber(&new_tid) != chains->place.blkno ||
		ItemPointerGetOffsetNumber(&new_tid) != chains->place.offset)
		elog(ERROR, "row version at (%u,%u) of table \"%s\" came to (%u,%u) instead of (%u,%u)",
			 ItemPointerGetBlockNumber(tid), ItemPointerGetOffsetNumber(tid),
			 RelationGetRelationName(rewrite->old_heaps[REWRITE_TABLE]),
			 ItemPointerGetBlockNumber(&new_tid), ItemPointerGetOffsetNumber(&new_tid),
			 chains->place.blkno, chains->place.offset);
	heap_freetuple(copy);
}

/* link_note -- a note without another version. */
static LinkNote
link_note(const ItemPointerData *tid, TransactionId xid, int kind)
{
	LinkNote	note = {.tid = *tid,.xid = xid,.kind = kind};

	ItemPointerSetInvalid(&note.other);
	return note;
}

/* cursor_begin -- read a sorted list from the beginning. */
static void
cursor_begin(LinkCursor *cursor, LinkSort *sort)
{
	cursor->sort = sort;
	cursor->has_note = link_sort_next(sort, &cursor->note);
}

/*
 * cursor_find
 *		Is there a note on this version?  Then it is cursor->note.  Callers ask for
 *		versions in ascending order.
 */
static bool
cursor_find(LinkCursor *cursor, const ItemPointerData *tid)
{
	if (cursor->sort == NULL)
		return false;
	while (cursor->has_note &&
		   ItemPointerCompare(&cursor->note.tid, unconstify(ItemPointerData *, tid)) < 0)
		cursor->has_note = link_sort_next(cursor->sort, &cursor->note);
	return cursor->has_note && ItemPointerEquals(unconstify(ItemPointerData *, tid), &cursor->note.tid);
}

/* cursor_end -- free the list, if there is one. */
static void
cursor_end(LinkCursor *cursor)
{
	if (cursor->sort != NULL)
		link_sort_end(cursor->sort);
	cursor->sort = NULL;
}
