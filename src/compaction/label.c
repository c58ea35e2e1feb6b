/*-------------------------------------------------------------------------
 *
 * label.c
 *	  What the owner of a table has said about its compaction: its security label.
 *
 *	SECURITY LABEL FOR pg_cyclone ON TABLE t IS 'compaction=on, threshold=40'
 *
 * The server keeps labels in a catalog of its own.  So only the owner of a table sets its
 * label, a rename keeps it, DROP TABLE removes it, pg_dump dumps it with the table, and no
 * publication has it.  Nothing of ours writes or runs anything for that.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <math.h>

#include "access/transam.h"
#include "catalog/pg_class.h"
#include "commands/seclabel.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "compaction/compaction.h"

#define PROVIDER	"pg_cyclone"

static void check_label(const ObjectAddress *object, const char *text);
static bool parse_label(const char *text, bool *is_wanted, double *threshold, const char **problem);
static bool parse_label_item(char *item, bool *is_wanted, double *threshold, const char **problem);
static char *trim_spaces(char *text);

/* compaction_label_init -- let the server know that there are such labels. */
void
compaction_label_init(void)
{
	Assert(process_shared_preload_libraries_in_progress);
	register_label_provider(PROVIDER, check_label);
}

/*
 * check_label
 *		The server's hook for a label that is to be set, by the owner of the object; NULL
 *		removes one, which must always be possible.
 */
static void
check_label(const ObjectAddress *object, const char *text)
{
	char		kind = object->classId == RelationRelationId && object->objectSubId == 0 ?
		get_rel_relkind(object->objectId) : '\0';
	bool		is_wanted;
	double		threshold;
	const char *problem;

	if (text == NULL)
		return;
	if ((kind != RELKIND_RELATION && kind != RELKIND_MATVIEW) ||
		object->objectId < FirstNormalObjectId ||
		get_rel_persistence(object->objectId) == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("labels of pg_cyclone are for tables that can be compacted"),
				 errdetail("These are permanent and unlogged tables and materialized views of users."),
				 kind == RELKIND_PARTITIONED_TABLE ? errhint("Label its partitions, one by one.") : 0));
	if (!parse_label(text, &is_wanted, &threshold, &problem))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid label for pg_cyclone: \"%s\"", text),
				 errdetail("%s", _(problem)),
				 errhint("A label is like 'compaction=off', 'threshold=40', or 'compaction=on, threshold=40'.")));
}

/* parse_label -- read a label; false, and the problem, if it is none. */
static bool
parse_label(const char *text, bool *is_wanted, double *threshold, const char **problem)
{
	char	   *next = pstrdup(text);
	bool		is_valid = true;

	*is_wanted = true;
	*threshold = cyclone_compaction_threshold;
	while (is_valid && next != NULL)
		is_valid = parse_label_item(strsep(&next, ","), is_wanted, threshold, problem);
	return is_valid;
}

/* parse_label_item -- read a name with its value, into which it writes; false, and the problem, if it is none. */
static bool
parse_label_item(char *item, bool *is_wanted, double *threshold, const char **problem)
{
	char	   *name = item;
	char	   *value = strchr(item, '=');
	char	   *end;

	if (value != NULL)
		*value++ = '\0';
	name = trim_spaces(name);
	value = value != NULL ? trim_spaces(value) : NULL;
	if (value != NULL && pg_strcasecmp(name, "compaction") == 0)
	{
		*problem = "\"compaction\" is on or off.";
		return parse_bool(value, is_wanted);
	}
	if (value != NULL && pg_strcasecmp(name, "threshold") == 0)
	{
		*problem = "\"threshold\" is a share in per cent, from 0 to 100.";
		*threshold = strtod(value, &end);
		return end != value && *end == '\0' && *threshold >= 0 && *threshold <= 100;
	}
	*problem = "It is a list of \"compaction\" and \"threshold\", each with a value.";
	return false;
}

/* trim_spaces -- the text without spaces around it; those at its end are overwritten. */
static char *
trim_spaces(char *text)
{
	char	   *end;

	while (isspace((unsigned char) *text))
		text++;
	end = text + strlen(text);
	while (end > text && isspace((unsigned char) end[-1]))
		*--end = '\0';
	return text;
}

/* compaction_label_of -- see compaction.h. */
char *
compaction_label_of(Oid relid, bool *is_wanted, double *threshold)
{
	ObjectAddress object = {.classId = RelationRelationId,.objectId = relid};
	char	   *text = GetSecurityLabel(&object, PROVIDER);
	const char *problem;

	/* only a later version has let in one that this one can't read */
	if (!parse_label(text != NULL ? text : "compaction=on", is_wanted, threshold, &problem))
		*is_wanted = false;
	return text;
}
