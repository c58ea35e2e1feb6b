/*-------------------------------------------------------------------------
 *
 * plain_index.c
 *	  Which indexes any process may build, at any time.
 *
 * Those of which all code comes with the server.  README.md says why.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/genam.h"
#include "access/transam.h"
#include "catalog/pg_index.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/nodeFuncs.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "index_build/plain_index.h"

static bool has_plain_columns(Relation index);
static Node *stored_expression(Relation index, AttrNumber column);
static bool has_other_code(Node *node, void *context);
static bool is_other_function(Oid function, void *context);
static bool is_plain_type(Oid type);
static bool is_builtin(Oid object);

/* index_is_plain -- may we build this index in any process? */
bool
index_is_plain(Relation index)
{
	Form_pg_index form = index->rd_index;

	Assert(CheckRelationLockedByMe(index, AccessShareLock, true));

	return is_builtin(index->rd_rel->relam) &&
		form->indisvalid && form->indisready && form->indislive &&
		!form->indcheckxmin &&
		has_plain_columns(index) &&
		!has_other_code(stored_expression(index, Anum_pg_index_indexprs), NULL) &&
		!has_other_code(stored_expression(index, Anum_pg_index_indpred), NULL);
}

/*
 * has_plain_columns
 *		Are the types and operator classes of all keys plain?
 *
 * The type in the table is what matters: what an index stores is made of it.
 * has_other_code looks at the types of expressions.
 */
static bool
has_plain_columns(Relation index)
{
	Form_pg_index form = index->rd_index;

	for (int column = 1; column <= form->indnkeyatts; column++)
	{
		AttrNumber	attnum = form->indkey.values[column - 1];

		if (attnum != 0 && !is_plain_type(get_atttype(form->indrelid, attnum)))
			return false;
		if (!is_builtin(index->rd_opfamily[column - 1]))
			return false;
		for (int number = 1; number <= index->rd_indam->amsupport; number++)
			if (!is_builtin(index_getprocid(index, column, number)))
				return false;
	}
	return true;
}

/*
 * stored_expression
 *		The expressions or the predicate of an index, NULL if it has none.
 *
 * In the relcache calls of SQL functions are replaced by the bodies that these have
 * at present, and another process may find other bodies.
 */
static Node *
stored_expression(Relation index, AttrNumber column)
{
	bool		isnull;
	Datum		stored = SysCacheGetAttr(INDEXRELID, index->rd_indextuple, column, &isnull);

	return isnull ? NULL : stringToNode(TextDatumGetCString(stored));
}

/* has_other_code -- does an expression run code that isn't plain? */
static bool
has_other_code(Node *node, void *context)
{
	if (node == NULL)
		return false;

	switch (nodeTag(node))
	{
		case T_List:
		case T_CaseWhen:
			return expression_tree_walker(node, has_other_code, context);
		case T_Var:
		case T_Const:
		case T_FuncExpr:
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
		case T_ScalarArrayOpExpr:
		case T_BoolExpr:
		case T_RelabelType:
		case T_CoerceViaIO:
		case T_CollateExpr:
		case T_CaseExpr:
		case T_CaseTestExpr:
		case T_ArrayExpr:
		case T_CoalesceExpr:
		case T_NullTest:
		case T_BooleanTest:
			break;
		default:
			return true;
	}
	return !is_plain_type(exprType(node)) ||
		check_functions_in_node(node, is_other_function, context) ||
		expression_tree_walker(node, has_other_code, context);
}

/* is_other_function -- is this other than a function of the server that any process may run? */
static bool
is_other_function(Oid function, void *context)
{
	return !is_builtin(function) ||
		func_volatile(function) != PROVOLATILE_IMMUTABLE ||
		func_parallel(function) != PROPARALLEL_SAFE;
}

/*
 * is_plain_type
 *		Do functions of the server, given values of this type, call only plain code?
 *
 * A function of the server compares enums.  Composite types and ranges may have
 * anything inside.  Configurations of full-text search name functions.  A user may
 * have given an operator class to a type that has none of the server's.
 */
static bool
is_plain_type(Oid type)
{
	Oid			base = getBaseType(type);
	Oid			element = get_element_type(base);
	TypeCacheEntry *entry;

	if (OidIsValid(element))
		return is_plain_type(element);
	if (base == REGCONFIGOID || base == REGDICTIONARYOID)
		return false;
	if (!type_is_enum(base) && !(is_builtin(base) && get_typtype(base) == TYPTYPE_BASE))
		return false;
	entry = lookup_type_cache(base, TYPECACHE_EQ_OPR | TYPECACHE_CMP_PROC | TYPECACHE_HASH_PROC);
	return is_builtin(entry->eq_opr) && is_builtin(entry->cmp_proc) && is_builtin(entry->hash_proc);
}

/* is_builtin -- does this come with the server?  Also true of InvalidOid. */
static bool
is_builtin(Oid object)
{
	return object < FirstNormalObjectId;
}
