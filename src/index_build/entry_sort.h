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

extern EntrySort *entry_sort_begin(int nwords, int tail_bits, Size capacity);
extern void entry_sort_put(EntrySort *sort, const uint64 *entry);
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

#endif							/* CYCLONE_ENTRY_SORT_H */
