/*-------------------------------------------------------------------------
 *
 * entry_sort.h
 *	  Sorting index entries that are integers.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_ENTRY_SORT_H
#define CYCLONE_ENTRY_SORT_H

/* An entry is an integer of 2 or 3 words, the highest first. */
#define ENTRY_MAX_WORDS		3

typedef struct EntrySort EntrySort;

/*
 * entry_sort_begin takes the current context's memory for capacity entries, at least one,
 * of nwords words.  While they are sorted there is as much again, and a hundredth of it.
 * Of entries that are equal but for the last tail_bits, the one that is put first must be
 * the smallest.
 *
 * entry_sort_put adds a copy of an entry, entry_sort_put_all of n that lie one behind
 * the other.  If entry_sort_is_full, it writes those before to a file.  When all are
 * there comes entry_sort_perform; then, if none were written to a file, perhaps
 * entry_sort_end_ties, which sorts those with equal keys by a comparison to which no
 * two are equal.
 *
 * entry_sort_next returns the next entry in order, valid until the next call, and NULL
 * behind the last one.  entry_sort_ahead is the entry that is number entries behind the
 * next one; NULL if there is none, or if it isn't in memory yet.
 */
extern EntrySort *entry_sort_begin(int nwords, int tail_bits, Size capacity);
extern void entry_sort_put(EntrySort *sort, const uint64 *entry);
extern void entry_sort_put_all(EntrySort *sort, const uint64 *entries, Size n);
extern bool entry_sort_is_full(const EntrySort *sort);
extern void entry_sort_perform(EntrySort *sort);
extern void entry_sort_end_ties(EntrySort *sort, qsort_arg_comparator compare, void *arg);
extern const uint64 *entry_sort_next(EntrySort *sort);
extern const uint64 *entry_sort_ahead(const EntrySort *sort, Size number);
extern void entry_sort_end(EntrySort *sort);

/* entries_compare -- as strcmp. */
static inline int
entries_compare(const uint64 *left, const uint64 *right, int nwords)
{
	for (int i = 0; i < nwords; i++)
		if (left[i] != right[i])
			return left[i] < right[i] ? -1 : 1;
	return 0;
}

/* entries_copy -- one of two or three words; a loop over them would become a call. */
static inline void
entries_copy(uint64 *to, const uint64 *from, int nwords)
{
	to[0] = from[0];
	to[1] = from[1];
	if (nwords == 3)
		to[2] = from[2];
}

#endif							/* CYCLONE_ENTRY_SORT_H */
