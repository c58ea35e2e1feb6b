/*-------------------------------------------------------------------------
 *
 * audit_rows.c
 *	  Two versions of a row, compared byte by byte.
 *
 * No function of a type or an operator class is called.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "utils/datum.h"

#include "audit/audit.h"

static bool value_differs(Datum old, Datum new, Form_pg_attribute attr, bool values_move);

/* audit_rows_differ -- see audit.h.  Leaves memory behind. */
bool
audit_rows_differ(HeapTuple old, TupleDesc old_desc, HeapTuple new, TupleDesc new_desc,
				  bool values_move)
{
	Datum	   *values[2];
	bool	   *nulls[2];
	bool		differ = old_desc->natts != new_desc->natts;

	/* most are the same bytes, from the bitmap of nulls on */
	if (!differ && old->t_len == new->t_len && old->t_data->t_hoff == new->t_data->t_hoff &&
		HeapTupleHeaderGetNatts(old->t_data) == HeapTupleHeaderGetNatts(new->t_data) &&
		HeapTupleHasNulls(old) == HeapTupleHasNulls(new) &&
		memcmp(old->t_data->t_bits, new->t_data->t_bits, old->t_len - SizeofHeapTupleHeader) == 0)
		return false;
	for (int i = 0; i < 2; i++)
	{
		values[i] = palloc_array(Datum, old_desc->natts);
		nulls[i] = palloc_array(bool, old_desc->natts);
	}
	if (!differ)
	{
		heap_deform_tuple(old, old_desc, values[0], nulls[0]);
		heap_deform_tuple(new, new_desc, values[1], nulls[1]);
	}
	for (int i = 0; i < old_desc->natts && !differ; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(old_desc, i);

		if (!attr->attisdropped)
			differ = nulls[0][i] != nulls[1][i] ||
				(!nulls[0][i] && value_differs(values[0][i], values[1][i], attr, values_move));
	}
	return differ;
}

/*
 * value_differs
 *		Is it another value?
 *
 * In a row that was formed anew, the same value may have a shorter header, or be
 * compressed.
 */
static bool
value_differs(Datum old, Datum new, Form_pg_attribute attr, bool values_move)
{
	struct varlena *values[] = {
		(struct varlena *) DatumGetPointer(old), (struct varlena *) DatumGetPointer(new)
	};

	if (attr->attlen != -1)
		return !datumIsEqual(old, new, attr->attbyval, attr->attlen);
	if (VARATT_IS_EXTERNAL(values[0]) || VARATT_IS_EXTERNAL(values[1]))
	{
		if (!values_move || !VARATT_IS_EXTERNAL_ONDISK(values[0]) || !VARATT_IS_EXTERNAL_ONDISK(values[1]))
			return !datumIsEqual(old, new, attr->attbyval, attr->attlen);
		/* compressed as they are */
		for (int i = 0; i < 2; i++)
			values[i] = detoast_external_attr(values[i]);
		return VARSIZE_ANY(values[0]) != VARSIZE_ANY(values[1]) ||
			memcmp(values[0], values[1], VARSIZE_ANY(values[0])) != 0;
	}
	for (int i = 0; i < 2; i++)
		values[i] = pg_detoast_datum_packed(values[i]);
	return VARSIZE_ANY_EXHDR(values[0]) != VARSIZE_ANY_EXHDR(values[1]) ||
		memcmp(VARDATA_ANY(values[0]), VARDATA_ANY(values[1]), VARSIZE_ANY_EXHDR(values[0])) != 0;
}
