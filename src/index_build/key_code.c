/*-------------------------------------------------------------------------
 *
 * key_code.c
 *	  Entries of a btree as integers that have its order.
 *
 * README.md says what such an integer has, and for which columns there is one.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/tupmacs.h"
#include "catalog/pg_am.h"
#include "catalog/pg_index.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/sortsupport.h"
#include "utils/uuid.h"

#include "compat.h"
#include "index_build/entry_sort.h"
#include "index_build/key_code.h"

#define WORD_BITS		64
#define OFFSET_BITS		16
/* The low bits of an entry: its TID */
#define TAIL_BITS		48
#define TAIL_MASK		((UINT64CONST(1) << TAIL_BITS) - 1)

typedef enum KeyKind
{
	KEY_UNSIGNED,
	KEY_SIGNED,
	KEY_BYTES,					/* passed by reference */
	KEY_ABBREVIATED
} KeyKind;

/* How the server compares values */
typedef struct KeyComparison
{
	Oid			function;
	KeyKind		kind;
	int			length;			/* of a value, in bytes */
} KeyComparison;

typedef struct KeyColumn
{
	KeyKind		kind;
	int			length;
	int			position;		/* of its lowest bit, from the entry's lowest */
	bool		is_descending;
	bool		nulls_first;
	Size		offset;			/* in a tuple without nulls */
} KeyColumn;

struct KeyCode
{
	TupleDesc	desc;
	int			nwords;			/* of the integer */
	bool		has_tuples;		/* and a word that points at one? */
	int			ncolumns;		/* whose comparison is known, and that fit */
	KeyColumn	columns[INDEX_MAX_KEYS];
	Size		tuple_size;		/* of one without nulls */
	IndexTuple	tuple;			/* room for one */
	SortSupportData abbreviation;
};

static const KeyComparison comparisons[] = {
	{F_BTBOOLCMP, KEY_UNSIGNED, 1},
	{F_BTCHARCMP, KEY_UNSIGNED, 1},
	{F_BTINT2CMP, KEY_SIGNED, 2},
	{F_BTINT4CMP, KEY_SIGNED, 4},
	{F_BTINT8CMP, KEY_SIGNED, 8},
	{F_BTOIDCMP, KEY_UNSIGNED, 4},
	{F_DATE_CMP, KEY_SIGNED, 4},
	{F_TIME_CMP, KEY_SIGNED, 8},
	{F_TIMESTAMP_CMP, KEY_SIGNED, 8},
	{F_TIMESTAMPTZ_CMP, KEY_SIGNED, 8},
	{F_CASH_CMP, KEY_SIGNED, 8},
	{F_PG_LSN_CMP, KEY_UNSIGNED, 8},
	{F_XID8CMP, KEY_UNSIGNED, 8},
	{F_UUID_CMP, KEY_BYTES, UUID_LEN},
	{F_MACADDR_CMP, KEY_BYTES, 6},
};

static int	key_bits(const KeyCode *code);
static bool can_abbreviate(KeyCode *code, Relation index);
static void place_columns(KeyCode *code, Relation index);
static const KeyComparison *comparison_of(Relation index, int column);
static inline void put_column(const KeyCode *code, const KeyColumn *column, Datum value,
							  bool isnull, uint64 *entry);
static inline uint64 code_of(const KeyColumn *column, Datum value);
static inline Datum value_of(const KeyColumn *column, uint64 code);
static void get_bytes(const KeyCode *code, const KeyColumn *column, const uint64 *entry, char *bytes);
static void get_tid(const KeyCode *code, const uint64 *entry, ItemPointer tid);
static IndexTuple form_with_nulls(KeyCode *code, const uint64 *entry);

/* mask_of -- this many low bits. */
static inline uint64
mask_of(int bits)
{
	return bits == WORD_BITS ? PG_UINT64_MAX : (UINT64CONST(1) << bits) - 1;
}

/* put_bits -- with the lowest at this position of an entry, where all is zero. */
static inline void
put_bits(uint64 *entry, int nwords, unsigned int position, uint64 bits)
{
	int			word = nwords - 1 - (int) (position / WORD_BITS);
	int			shift = position % WORD_BITS;

	entry[word] |= bits << shift;
	if (shift > 0 && word > 0)
		entry[word - 1] |= bits >> (WORD_BITS - shift);
}

/* get_bits -- n bits from this position on. */
static inline uint64
get_bits(const uint64 *entry, int nwords, unsigned int position, int n)
{
	int			word = nwords - 1 - (int) (position / WORD_BITS);
	int			shift = position % WORD_BITS;
	uint64		bits = entry[word] >> shift;

	if (shift > 0 && word > 0)
		bits |= entry[word - 1] << (WORD_BITS - shift);
	return bits & mask_of(n);
}

/* comparison_of -- how values of a column are compared, if we know that. */
static const KeyComparison *
comparison_of(Relation index, int column)
{
	Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(index), column);
	Oid			function = index_getprocid(index, column + 1, BTORDER_PROC);

	for (int i = 0; i < lengthof(comparisons); i++)
	{
		const KeyComparison *comparison = &comparisons[i];

		if (comparison->function != function)
			continue;
		if (attribute->attlen != comparison->length ||
			attribute->attbyval != (comparison->kind != KEY_BYTES))
			return NULL;
		return comparison;
	}
	return NULL;
}

/* key_code_begin -- how to make integers of the entries of an index. */
KeyCode *
key_code_begin(Relation index)
{
	KeyCode    *code = palloc0_object(KeyCode);
	int			nkeys = index->rd_index->indnkeyatts;

	Assert(CheckRelationLockedByMe(index, AccessShareLock, true));

	if (index->rd_rel->relam != BTREE_AM_OID)
		return NULL;
	code->desc = RelationGetDescr(index);
	for (; code->ncolumns < nkeys; code->ncolumns++)
	{
		const KeyComparison *comparison = comparison_of(index, code->ncolumns);
		KeyColumn  *column = &code->columns[code->ncolumns];

		if (comparison == NULL)
			break;
		column->kind = comparison->kind;
		column->length = comparison->length;
	}
	code->has_tuples = code->ncolumns < nkeys || nkeys < index->rd_index->indnatts ||
		key_bits(code) + TAIL_BITS > ENTRY_MAX_WORDS * WORD_BITS;

	if (code->has_tuples)
	{
		while (key_bits(code) + TAIL_BITS > (ENTRY_MAX_WORDS - 1) * WORD_BITS)
			code->ncolumns--;
		if (code->ncolumns == 0 && !can_abbreviate(code, index))
			return NULL;
	}
	place_columns(code, index);
	return code;
}

/* key_bits -- how many bits these columns take. */
static int
key_bits(const KeyCode *code)
{
	int			bits = 0;

	for (int i = 0; i < code->ncolumns; i++)
		bits += 1 + code->columns[i].length * BITS_PER_BYTE;
	return bits;
}

/*
 * can_abbreviate
 *		May the first column be abbreviated to an unsigned number?  Make it so.
 */
static bool
can_abbreviate(KeyCode *code, Relation index)
{
	SortSupport support = &code->abbreviation;

	support->ssup_cxt = CurrentMemoryContext;
	support->ssup_collation = index->rd_indcollation[0];
	support->ssup_attno = 1;
	support->abbreviate = true;
	compat_prepare_sort_support(index, false, support);
	if (support->abbrev_converter == NULL || support->comparator != ssup_datum_unsigned_cmp)
		return false;
	code->columns[0].kind = KEY_ABBREVIATED;
	code->columns[0].length = sizeof(Datum);
	code->ncolumns = 1;
	return true;
}

/* place_columns -- where do values lie in the integer, and in a tuple? */
static void
place_columns(KeyCode *code, Relation index)
{
	int			position;
	Size		offset = MAXALIGN(sizeof(IndexTupleData));

	code->nwords = code->has_tuples || key_bits(code) + TAIL_BITS <= 2 * WORD_BITS ?
		2 : ENTRY_MAX_WORDS;
	position = code->nwords * WORD_BITS;
	for (int i = 0; i < code->ncolumns; i++)
	{
		KeyColumn  *column = &code->columns[i];

		column->is_descending = (index->rd_indoption[i] & INDOPTION_DESC) != 0;
		column->nulls_first = (index->rd_indoption[i] & INDOPTION_NULLS_FIRST) != 0;
		position -= 1 + column->length * BITS_PER_BYTE;
		column->position = position;
		offset = att_align_nominal(offset, TupleDescAttr(code->desc, i)->attalign);
		column->offset = offset;
		offset += column->length;
	}
	Assert(position >= TAIL_BITS);
	if (code->has_tuples)
		return;

	code->tuple_size = MAXALIGN(offset);
	/* with nulls there is a bitmap, but a value less */
	code->tuple = palloc0(code->tuple_size + MAXALIGN(sizeof(IndexAttributeBitMapData)));
	code->tuple->t_info = code->tuple_size;
}

/* key_code_has_tuples -- does an entry point at an index tuple? */
bool
key_code_has_tuples(const KeyCode *code)
{
	return code->has_tuples;
}

/* key_code_words -- how many words an entry has. */
int
key_code_words(const KeyCode *code)
{
	return code->nwords + code->has_tuples;
}

/* key_code_tail_bits -- how many of its low bits aren't of the key. */
int
key_code_tail_bits(const KeyCode *code)
{
	return TAIL_BITS + (code->has_tuples ? WORD_BITS : 0);
}

/* key_code_is_worthless -- do abbreviations tell too few entries apart? */
bool
key_code_is_worthless(KeyCode *code, int64 nentries)
{
	SortSupport support = &code->abbreviation;

	Assert(nentries >= 0);
	return support->abbrev_abort != NULL &&
		support->abbrev_abort((int) Min(nentries, INT_MAX), support);
}

/* key_code_set_tuple -- have an entry point at its index tuple. */
void
key_code_set_tuple(const KeyCode *code, uint64 *entry, IndexTuple tuple)
{
	Assert(code->has_tuples);
	entry[code->nwords] = (uint64) (uintptr_t) tuple;
}

/*
 * key_code_encode
 *		Make an integer of an entry.  It may leave memory behind in the current
 *		context.
 */
void
key_code_encode(const KeyCode *code, const Datum *values, const bool *isnull,
				ItemPointer tid, uint64 *entry)
{
	uint64		number = (uint64) ItemPointerGetBlockNumber(tid) << OFFSET_BITS |
		ItemPointerGetOffsetNumber(tid);

	Assert(ItemPointerIsValid(tid));

	entry[0] = 0;
	entry[1] = 0;
	entry[code->nwords - 1] = number;
	for (int i = 0; i < code->ncolumns; i++)
		put_column(code, &code->columns[i], values[i], isnull[i], entry);
}

/* put_column -- a value's bits, and before them whether it is null. */
static inline void
put_column(const KeyCode *code, const KeyColumn *column, Datum value, bool isnull, uint64 *entry)
{
	int			bits = column->length * BITS_PER_BYTE;

	if (isnull != column->nulls_first)
		put_bits(entry, code->nwords, column->position + bits, 1);
	if (isnull)
		return;

	if (column->kind == KEY_ABBREVIATED)
	{
		uint64		number = code->abbreviation.abbrev_converter(value, (SortSupport) &code->abbreviation);

		put_bits(entry, code->nwords, column->position, column->is_descending ? ~number : number);
	}
	else if (column->kind != KEY_BYTES)
		put_bits(entry, code->nwords, column->position, code_of(column, value));
	else
	{
		const uint8 *bytes = (const uint8 *) DatumGetPointer(value);

		for (int done = 0; done < column->length; done += sizeof(uint64))
		{
			int			n = Min(column->length - done, (int) sizeof(uint64));
			uint64		number = 0;

			for (int i = 0; i < n; i++)
				number = number << BITS_PER_BYTE | bytes[done + i];
			put_bits(entry, code->nwords, column->position + bits - (done + n) * BITS_PER_BYTE,
					 column->is_descending ? ~number & mask_of(n * BITS_PER_BYTE) : number);
		}
	}
}

/* code_of -- a value that is passed by value. */
static inline uint64
code_of(const KeyColumn *column, Datum value)
{
	int			bits = column->length * BITS_PER_BYTE;
	uint64		code = (uint64) value & mask_of(bits);

	if (column->kind == KEY_SIGNED)
		code ^= UINT64CONST(1) << (bits - 1);
	return column->is_descending ? ~code & mask_of(bits) : code;
}

/* value_of -- the value that has this code. */
static inline Datum
value_of(const KeyColumn *column, uint64 code)
{
	int			bits = column->length * BITS_PER_BYTE;
	uint64		sign = UINT64CONST(1) << (bits - 1);

	if (column->is_descending)
		code = ~code & mask_of(bits);
	return (Datum) (column->kind == KEY_SIGNED ? code ^ sign : code);
}

/* key_code_tuple -- the index tuple of an entry. */
IndexTuple
key_code_tuple(KeyCode *code, const uint64 *entry)
{
	IndexTuple	tuple = code->tuple;

	if (code->has_tuples)
		return (IndexTuple) (uintptr_t) entry[code->nwords];

	/* padding is zero */
	if (tuple->t_info != code->tuple_size)
		memset(tuple, 0, code->tuple_size);
	for (int i = 0; i < code->ncolumns; i++)
	{
		const KeyColumn *column = &code->columns[i];
		int			bits = column->length * BITS_PER_BYTE;

		if (get_bits(entry, code->nwords, column->position + bits, 1) != column->nulls_first)
			return form_with_nulls(code, entry);
		if (column->kind == KEY_BYTES)
			get_bytes(code, column, entry, (char *) tuple + column->offset);
		else
			store_att_byval((char *) tuple + column->offset,
							value_of(column, get_bits(entry, code->nwords, column->position, bits)),
							column->length);
	}
	tuple->t_info = code->tuple_size;
	get_tid(code, entry, &tuple->t_tid);
	return tuple;
}

/* get_bytes -- of a value that is passed by reference. */
static void
get_bytes(const KeyCode *code, const KeyColumn *column, const uint64 *entry, char *bytes)
{
	int			position = column->position + column->length * BITS_PER_BYTE;

	for (int done = 0; done < column->length; done += sizeof(uint64))
	{
		int			n = Min(column->length - done, (int) sizeof(uint64));
		uint64		number;

		position -= n * BITS_PER_BYTE;
		number = get_bits(entry, code->nwords, position, n * BITS_PER_BYTE);
		if (column->is_descending)
			number = ~number;
		for (int i = n - 1; i >= 0; i--, number >>= BITS_PER_BYTE)
			bytes[done + i] = (char) number;
	}
}

/* form_with_nulls -- make the tuple of an entry of which a value is null. */
static IndexTuple
form_with_nulls(KeyCode *code, const uint64 *entry)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];
	uint64		places[INDEX_MAX_KEYS][ENTRY_MAX_WORDS];
	IndexTuple	tuple;

	for (int i = 0; i < code->ncolumns; i++)
	{
		const KeyColumn *column = &code->columns[i];
		int			bits = column->length * BITS_PER_BYTE;
		char	   *bytes = (char *) places[i];

		isnull[i] = get_bits(entry, code->nwords, column->position + bits, 1) != column->nulls_first;
		if (column->kind == KEY_BYTES)
		{
			get_bytes(code, column, entry, bytes);
			values[i] = PointerGetDatum(bytes);
		}
		else
		{
			/* as it is fetched from a tuple */
			store_att_byval(bytes, value_of(column, get_bits(entry, code->nwords, column->position, bits)),
							column->length);
			values[i] = fetch_att(bytes, true, column->length);
		}
	}
	tuple = index_form_tuple(code->desc, values, isnull);
	memset(code->tuple, 0, code->tuple_size);
	memcpy(code->tuple, tuple, IndexTupleSize(tuple));
	pfree(tuple);
	get_tid(code, entry, &code->tuple->t_tid);
	return code->tuple;
}

/* get_tid -- of the row that an entry is of. */
static void
get_tid(const KeyCode *code, const uint64 *entry, ItemPointer tid)
{
	uint64		number = entry[code->nwords - 1] & TAIL_MASK;

	ItemPointerSet(tid, number >> OFFSET_BITS, number & mask_of(OFFSET_BITS));
}

/* key_code_same_keys -- have two entries equal keys, as far as integers go? */
bool
key_code_same_keys(const KeyCode *code, const uint64 *left, const uint64 *right)
{
	int			last = code->nwords - 1;

	for (int i = 0; i < last; i++)
		if (left[i] != right[i])
			return false;
	return ((left[last] ^ right[last]) & ~TAIL_MASK) == 0;
}
