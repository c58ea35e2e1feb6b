/*-------------------------------------------------------------------------
 *
 * library.c
 *	  The file of this library, and whether it was loaded in time.
 *
 * The library works only if the postmaster has loaded it: then each process inherits
 * it, with its shared memory, hooks and state.  In a process that loads it by itself it
 * does nothing, and its functions raise an error.  So it is harmless in
 * session_preload_libraries, for LOAD, and where pg_upgrade or pg_restore only look
 * whether its functions are there.
 *
 * A background worker looks up its routine by the name of the library.  By the bare
 * name the server would search for the file.  If a package's upgrade has replaced the
 * file, the server would load the new one beside the one that the worker has inherited;
 * if the file was moved, it would find none.  So workers use the path under which the
 * postmaster has loaded the library: the server finds it among its loaded files, and
 * goes on with the library that it was started with.
 *
 * The extension's objects in a database may be of another version, so a function refuses to
 * return rows if it is declared with another number of columns.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "postmaster/bgworker.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "library.h"

/* by which a second copy in a process finds the path of the first */
#define RENDEZVOUS "pg_cyclone"

/* as the postmaster has loaded it, NULL if it hasn't; the same in all processes */
static const char *path = NULL;

/* the file as it was then; st_ino is 0 if that isn't known */
static struct stat file;

/* library_init -- see library.h. */
void
library_init(void)
{
	Dl_info		info;

	Assert(process_shared_preload_libraries_in_progress);
	Assert(path == NULL);

	/* the bare name will do where the system doesn't tell */
	if (dladdr((void *) library_init, &info) == 0 || info.dli_fname == NULL ||
		strlen(info.dli_fname) >= sizeof(((BackgroundWorker *) 0)->bgw_library_name))
		path = "pg_cyclone";
	else
		path = MemoryContextStrdup(TopMemoryContext, info.dli_fname);
	if (stat(path, &file) != 0)
		file.st_ino = 0;
	*find_rendezvous_variable(RENDEZVOUS) = unconstify(char *, path);
}

/* library_path -- see library.h. */
const char *
library_path(void)
{
	return path;
}

/*
 * library_warn_if_replaced -- see library.h.
 *
 * The server finds the file among those that it has loaded, by its name, and so the
 * functions of a newer version are missing there.
 */
void
library_warn_if_replaced(void)
{
	struct stat now;

	if (path != NULL && file.st_ino != 0 && stat(path, &now) == 0 &&
		(now.st_ino != file.st_ino || now.st_dev != file.st_dev || now.st_mtime != file.st_mtime))
		ereport(WARNING,
				(errmsg("the library of pg_cyclone has been replaced since the server was started"),
				 errhint("Restart the server before you create the extension.")));
}

/* refuse_without_preloading -- see library.h. */
void
refuse_without_preloading(void)
{
	const char *preloaded;

	if (path != NULL)
		return;
	preloaded = *find_rendezvous_variable(RENDEZVOUS);
	if (preloaded != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_cyclone was preloaded from another file than its functions are in"),
				 errdetail("It was preloaded from \"%s\".", preloaded),
				 errhint("Set shared_preload_libraries to the plain name pg_cyclone, without a folder, and restart the server.")));
	else
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_cyclone must be loaded via \"shared_preload_libraries\""),
				 errhint("Add pg_cyclone to shared_preload_libraries in postgresql.conf and restart the server.")));
}

/* library_begin_rows -- see library.h. */
void
library_begin_rows(FunctionCallInfo fcinfo, int columns)
{
	TupleDesc	desc;

	Assert(columns > 0);
	InitMaterializedSRF(fcinfo, 0);
	desc = ((ReturnSetInfo *) fcinfo->resultinfo)->setDesc;
	if (desc->natts != columns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s does not fit the library of pg_cyclone",
						get_func_name(fcinfo->flinfo->fn_oid)),
				 errdetail("It is declared with %d columns, and the library has %d.",
						   desc->natts, columns),
				 errhint("Say DROP EXTENSION pg_cyclone; CREATE EXTENSION pg_cyclone; in this database, or restart the server if it still has the older library.")));
}

/* library_may_see -- see library.h. */
bool
library_may_see(Oid viewer, Oid user)
{
	return has_privs_of_role(viewer, ROLE_PG_READ_ALL_STATS) ||
		(OidIsValid(user) && has_privs_of_role(viewer, user));
}
