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

extern KeyCode *key_code_begin(Relation index);
extern bool key_code_has_tuples(const KeyCode *code);
extern int	key_code_words(const KeyCode *code);
extern int	key_code_tail_bits(const KeyCode *code);
extern void key_code_encode(const KeyCode *code, const Datum *values, const bool *isnull,
							ItemPointer tid, uint64 *entry);
extern bool key_code_is_worthless(KeyCode *code, int64 nentries);
extern void key_code_set_tuple(const KeyCode *code, uint64 *entry, IndexTuple tuple);
extern IndexTuple key_code_tuple(KeyCode *code, const uint64 *entry);
extern void key_code_tid(const KeyCode *code, const uint64 *entry, ItemPointer tid);
extern bool key_code_is_exact(const KeyCode *code, const uint64 *entry);
extern bool key_code_same_keys(const KeyCode *code, const uint64 *left, const uint64 *right);

#endif							/* CYCLONE_KEY_CODE_H */
