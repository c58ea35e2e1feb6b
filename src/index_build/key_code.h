/*-------------------------------------------------------------------------
 *
 * key_code.h
 *	  Entries of a btree as integers that have its order.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_KEY_CODE_H
#define CYCLONE_KEY_CODE_H

#include "access/itup.h"
#include "utils/rel.h"

typedef struct KeyCode KeyCode;

/*
 * key_code_begin says how to make integers of the entries of an index, with the current
 * context's memory; NULL if that isn't possible.  They are the same in each process.
 * An entry has key_code_words words.  The low key_code_tail_bits of them aren't of the key.
 *
 * key_code_encode makes an entry.  It may leave memory behind in the current context.  If
 * key_code_has_tuples, key_code_set_tuple then has it point at its index tuple, which
 * stays where it is, and the sort compares the tuples of entries with the same integer.
 * key_code_is_worthless, asked now and then, after nentries entries: do abbreviations
 * tell too few of them apart?
 *
 * key_code_tuple is the index tuple of an entry.  Without tuples, it is made, and valid
 * until the next call.  key_code_same_keys compares integers only.
 */
extern KeyCode *key_code_begin(Relation index);
extern bool key_code_has_tuples(const KeyCode *code);
extern int	key_code_words(const KeyCode *code);
extern int	key_code_tail_bits(const KeyCode *code);
extern void key_code_encode(const KeyCode *code, const Datum *values, const bool *isnull,
							ItemPointer tid, uint64 *entry);
extern bool key_code_is_worthless(KeyCode *code, int64 nentries);
extern void key_code_set_tuple(const KeyCode *code, uint64 *entry, IndexTuple tuple);
extern IndexTuple key_code_tuple(KeyCode *code, const uint64 *entry);
extern bool key_code_same_keys(const KeyCode *code, const uint64 *left, const uint64 *right);

#endif							/* CYCLONE_KEY_CODE_H */
