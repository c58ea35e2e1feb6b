/*-------------------------------------------------------------------------
 *
 * audit.c
 *	  A sample of pages, judged a second time by other code than the engine's.
 *
 * Each page of the heap or an index that VACUUM comes to is one of the sample by chance:
 * cyclone.audit is how likely that is.  docs/how-it-works.md lists what is compared with
 * what; here are the store of dead items and the age of the table.
 *
 * An audit uses the locks and pins that the engine has at that moment, but for the
 * search for entries that are left, and for pages that are skipped.  Plans are judged
 * before a critical section begins, results when it has ended and is logged.
 *
 * If an audit fails, the process releases the page's lock, sets a mark (audit_mark.c), by
 * which the table is left to the server, and writes a report.  An error ends the VACUUM;
 * the leader raises that of a worker again.  That comes before the second pass, so no
 * item is unused, and nothing is lost.  A damaged page is reported first (page_check.c).
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "audit/audit.h"

/* Sampled pages of the chunk of the store that is being filled */
struct AuditNotes
{
	uint32		chunk;
	bool		has_dead;		/* has any page of the chunk? */
	int			npages;
	DeadTidsPage pages[DEAD_TIDS_CHUNK_BLOCKS];
};

/*
 * audit_begin
 *		Each member calls this when it knows the shared block.
 */
void
audit_begin(TableVacuum *vacuum)
{
	Assert(vacuum->audit_notes == NULL && vacuum->btree_audit == NULL);
	Assert(TransactionIdIsNormal(vacuum->shared->cutoffs.OldestXmin));

	vacuum->page_is_audited = false;
	vacuum->counters.audited_relfrozenxid = vacuum->shared->cutoffs.OldestXmin;
	vacuum->counters.audited_relminmxid = vacuum->shared->cutoffs.OldestMxact;
	if (vacuum->dead_tids != NULL)
		vacuum->btree_audit = palloc_object(BtreeAudit);
	if (cyclone_audit <= 0 || vacuum->dead_tids == NULL)
		return;
	vacuum->audit_notes = palloc0_object(struct AuditNotes);
}

/*
 * audit_stored
 *		These dead items of a block have been added to the store.  If its page is
 *		audited, note them: when the chunk is complete they are looked for in the store.
 */
void
audit_stored(TableVacuum *vacuum, BlockNumber blkno, const OffsetNumber *offsets, int noffsets)
{
	struct AuditNotes *notes = vacuum->audit_notes;
	uint32		chunk = blkno / DEAD_TIDS_CHUNK_BLOCKS;

	Assert(blkno < vacuum->shared->rel_pages);
	Assert(noffsets == 0 || offsets != NULL);
	Assert(noffsets >= 0 && noffsets <= MaxHeapTuplesPerPage);
	if (notes == NULL)
		return;
	if (chunk != notes->chunk)
	{
		audit_collected(vacuum);
		notes->chunk = chunk;
	}
	notes->has_dead |= noffsets > 0;
	if (vacuum->page_is_audited && notes->npages < lengthof(notes->pages))
	{
		DeadTidsPage *page = &notes->pages[notes->npages++];

		page->blkno = blkno;
		page->noffsets = noffsets;
		memcpy(page->offsets, offsets, noffsets * sizeof(OffsetNumber));
	}
}

/*
 * audit_collected
 *		The chunk in hand is complete: compare what is noted of it with the store, and
 *		forget it.
 *
 * A chunk without dead items is left out: it leads to the store's segment 0, which
 * another member may be making just now.
 */
void
audit_collected(TableVacuum *vacuum)
{
	struct AuditNotes *notes = vacuum->audit_notes;

	if (notes == NULL)
		return;
	Assert(vacuum->dead_tids != NULL);
	Assert(notes->npages >= 0 && notes->npages <= lengthof(notes->pages));
	for (int i = 0; notes->has_dead && i < notes->npages; i++)
	{
		const DeadTidsPage *noted = &notes->pages[i];
		DeadTidsPage stored = {0};
		AuditPlace	place = {.rel = vacuum->rel,.blkno = noted->blkno};

		if (!dead_tids_next_page(vacuum->dead_tids, noted->blkno, noted->blkno + 1, &stored))
			stored.noffsets = 0;
		if (stored.noffsets != noted->noffsets ||
			memcmp(stored.offsets, noted->offsets, noted->noffsets * sizeof(OffsetNumber)) != 0)
			audit_fail(vacuum, &place,
					   psprintf("the store has %d dead items of this block", stored.noffsets),
					   psprintf("there are %d, or others", noted->noffsets));
	}
	notes->npages = 0;
	notes->has_dead = false;
}

/*
 * audit_age
 *		Leader: is the new relfrozenxid or relminmxid newer than an ID that was seen
 *		on an audited page?
 */
void
audit_age(TableVacuum *vacuum, const VacuumCounters *counters)
{
	AuditPlace	place = {.rel = vacuum->rel,.blkno = InvalidBlockNumber};

	Assert(is_leader(vacuum) && !IsInParallelMode());

	if (TransactionIdIsValid(counters->new_relfrozenxid) &&
		TransactionIdPrecedes(counters->audited_relfrozenxid, counters->new_relfrozenxid))
		audit_fail(vacuum, &place,
				   psprintf("relfrozenxid becomes %u", counters->new_relfrozenxid),
				   psprintf("an XID that is left is %u", counters->audited_relfrozenxid));
	if (MultiXactIdIsValid(counters->new_relminmxid) &&
		MultiXactIdPrecedes(counters->audited_relminmxid, counters->new_relminmxid))
		audit_fail(vacuum, &place,
				   psprintf("relminmxid becomes %u", counters->new_relminmxid),
				   psprintf("a MultiXactId that is left is %u", counters->audited_relminmxid));
}

/*
 * audit_fail
 *		Raise the error: there are two verdicts on a page, or an item of it.
 *
 * Releases the page's lock.  Both texts are parts of sentences.
 */
void
audit_fail(TableVacuum *vacuum, const AuditPlace *place, const char *engine, const char *audit)
{
	const struct VacuumCutoffs *cutoffs = &vacuum->shared->cutoffs;
	const char *state =
		psprintf("table \"%s.%s.%s\", member %d of %d\n"
				 "OldestXmin %u, OldestMxact %u, FreezeLimit %u, MultiXactCutoff %u, relfrozenxid %u, relminmxid %u\n"
				 "indexes %d, index scans %d, aggressive %d",
				 vacuum->dbname, vacuum->relnamespace, vacuum->relname,
				 vacuum->member, vacuum->shared->nmembers,
				 cutoffs->OldestXmin, cutoffs->OldestMxact, cutoffs->FreezeLimit,
				 cutoffs->MultiXactCutoff, cutoffs->relfrozenxid, cutoffs->relminmxid,
				 vacuum->nindexes, vacuum->shared->num_index_scans, vacuum->shared->aggressive);

	Assert(vacuum->member >= 0 && vacuum->member < vacuum->shared->nmembers);
	Assert(place != NULL && place->rel != NULL);
	audit_raise(place, "VACUUM", state, engine, audit);
}
