/*-------------------------------------------------------------------------
 *
 * states.c
 *	  What is remembered of the tables of a database: samples, runs and pauses.
 *
 * It is in a small file for each database (small_file.c), not in a table: a table may be
 * another role's one day, who could have the worker run functions of his, and a publication
 * of all tables has it, too.  The file is sorted by relid, and written as a whole when a
 * table was sampled, or a run has ended.
 *
 * A server that is made of a base backup begins with what was known then.  A database that
 * is copied or restored begins anew.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "common/int.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/fd.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compaction/compaction.h"
#include "small_file.h"

#define STATES_NAME		"compaction_"
#define STATES_PATH		SMALL_FILE_FOLDER "/" STATES_NAME "%u"

static const SmallFileFormat format = {
	.magic = 0x43594353,
	.version = 1,
	.record_size = sizeof(CompactionState),
	.max_records = 1000000
};

static bool write_states(const CompactionStates *states);
static int	compare_states(const void *one, const void *other);

/* compaction_states_read -- see compaction.h. */
CompactionStates
compaction_states_read(void)
{
	CompactionStates result;
	char		path[MAXPGPATH];
	void	   *records;

	Assert(OidIsValid(MyDatabaseId));
	snprintf(path, sizeof(path), STATES_PATH, MyDatabaseId);
	result.count = small_file_read(path, &format, &records, NULL);
	result.states = records;
	result.is_kept = result.count < 0;
	result.count = Max(result.count, 0);
	return result;
}

/* compaction_states_find -- see compaction.h. */
CompactionState *
compaction_states_find(const CompactionStates *states, Oid relid)
{
	CompactionState key = {.relid = relid};

	return states->count == 0 ? NULL :
		bsearch(&key, states->states, states->count, sizeof(CompactionState), compare_states);
}

/* compaction_states_put -- see compaction.h. */
bool
compaction_states_put(const CompactionState *state)
{
	CompactionStates states = compaction_states_read();
	CompactionState *old = compaction_states_find(&states, state->relid);

	if (states.is_kept)
		return false;
	if (old != NULL)
		*old = *state;
	else if (states.count < format.max_records)
	{
		CompactionState *more = palloc_array(CompactionState, states.count + 1);

		if (states.count > 0)
			memcpy(more, states.states, states.count * sizeof(CompactionState));
		more[states.count++] = *state;
		qsort(more, states.count, sizeof(CompactionState), compare_states);
		states.states = more;
	}
	else
		return false;
	return write_states(&states);
}

/*
 * compaction_states_tidy -- see compaction.h.
 *
 * If the clock was set back, a time that hasn't come yet would be waited for until it has.
 * It is taken for now.
 */
void
compaction_states_tidy(void)
{
	CompactionStates states = compaction_states_read();
	TimestampTz now = GetCurrentTimestamp();
	bool		is_changed = false;
	int			left = 0;

	for (int i = 0; i < states.count; i++)
	{
		CompactionState *state = &states.states[i];

		is_changed |= state->ended_at > now || state->sampled_at > now;
		state->ended_at = Min(state->ended_at, now);
		state->sampled_at = Min(state->sampled_at, now);
		if (SearchSysCacheExists1(RELOID, ObjectIdGetDatum(state->relid)))
			states.states[left++] = *state;
	}
	is_changed |= left < states.count;
	states.count = left;
	if (is_changed && !states.is_kept)
		(void) write_states(&states);
}

/* write_states -- write the file of this database; false if that can't be done, as the log says. */
static bool
write_states(const CompactionStates *states)
{
	char		path[MAXPGPATH];

	snprintf(path, sizeof(path), STATES_PATH, MyDatabaseId);
	return small_file_write(path, &format, states->states, states->count,
							SMALL_FILE_SURVIVES_POWER_CUT, LOG);
}

/* compaction_states_sweep -- see compaction.h. */
void
compaction_states_sweep(const List *databases)
{
	DIR		   *folder = AllocateDir(SMALL_FILE_FOLDER);
	struct dirent *entry;

	if (folder == NULL)
		return;
	while ((entry = ReadDirExtended(folder, SMALL_FILE_FOLDER, LOG)) != NULL)
	{
		char		path[MAXPGPATH];
		Oid			database;

		if (sscanf(entry->d_name, STATES_NAME "%u", &database) != 1 ||
			list_member_oid(databases, database))
			continue;
		snprintf(path, sizeof(path), "%s/%s", SMALL_FILE_FOLDER, entry->d_name);
		(void) unlink(path);
	}
	FreeDir(folder);
}

/* compare_states -- by relid, for qsort and bsearch. */
static int
compare_states(const void *one, const void *other)
{
	return pg_cmp_u32(((const CompactionState *) one)->relid, ((const CompactionState *) other)->relid);
}
