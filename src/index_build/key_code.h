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

/* The low bits of an entry: its TID, and whether there is more to the keys */
#define CODE_INEXACT		UINT64CONST(1)
#define CODE_TAIL_BITS		49
#define CODE_TAIL_MASK		((UINT64CONST(1) << CODE_TAIL_BITS) - 1)

typedef struct KeyCode KeyCode;

extern bool key_code_is_possible(Relation index);
extern KeyCode *key_code_begin(Relation index);
extern int	key_code_words(const KeyCode *code);
extern void key_code_encode(const KeyCode *code, const Datum *values, const bool *isnull,
							ItemPointer tid, uint64 *entry);
extern IndexTuple key_code_tuple(KeyCode *code, const uint64 *entry);
extern void key_code_tid(const KeyCode *code, const uint64 *entry, ItemPointer tid);
extern bool key_code_is_exact(const KeyCode *code, const uint64 *entry);
extern bool key_code_same_keys(const KeyCode *code, const uint64 *left, const uint64 *right);

#endif							/* CYCLONE_KEY_CODE_H */
