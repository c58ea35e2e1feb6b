/*-------------------------------------------------------------------------
 *
 * small_file.c
 *	  Our small files in the data directory, all in one format.
 *
 * A file begins with a header that says what it is.  Behind it are the records, each with
 * a checksum of its own: so a single one can be written to its place, and a crash in the
 * midst of that costs this record, and no other.  A checksum of 0 marks an empty place, as
 * a hole of the file does.
 *
 * Files are opened without the server's bookkeeping, as that may raise an error, and
 * records are also written where an error is on its way, and by signal handlers.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "port/pg_crc32c.h"
#include "port/pg_iovec.h"
#include "storage/fd.h"

#include "small_file.h"

typedef struct SmallFileHeader
{
	uint32		magic;
	uint32		version;
	uint32		record_size;
	pg_crc32c	crc;
} SmallFileHeader;

static int	keep_whole_records(const char *path, const SmallFileFormat *format,
							   char *content, Size size, bool *is_damaged);
static SmallFileHeader make_header(const SmallFileFormat *format);
static bool write_record(int fd, const SmallFileFormat *format, int place, const void *record);
static bool write_content(int fd, const SmallFileFormat *format,
						  const void *records, int nrecords);
static bool make_folder(SmallFileSafety safety, int elevel);
static pg_crc32c checksum(const void *what, Size size);
static Size record_bytes(const SmallFileFormat *format);
static off_t record_offset(const SmallFileFormat *format, int place);

/* small_file_read -- read a whole file. */
int
small_file_read(const char *path, const SmallFileFormat *format, void **records,
				bool *is_damaged)
{
	int			fd = open(path, O_RDONLY | O_CLOEXEC | PG_BINARY);
	struct stat status = {0};
	off_t		most = record_offset(format, format->max_records);
	char	   *content = NULL;
	ssize_t		size = -1;
	bool		has_damage = false;
	int			nrecords = -1;

	*records = NULL;
	if (is_damaged != NULL)
		*is_damaged = false;
	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd >= 0 && fstat(fd, &status) == 0)
	{
		content = palloc_extended(Min(status.st_size, most) + 1,
								  MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
		errno = ENOMEM;
	}
	if (content != NULL)
		size = read(fd, content, Min(status.st_size, most));
	if (size < 0)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", path),
				 errhint("It is kept. Find out why the server can't read it.")));
	else
		nrecords = keep_whole_records(path, format, content, size, &has_damage);
	if (fd >= 0)
		close(fd);
	if (is_damaged != NULL)
		*is_damaged = has_damage;
	else if (has_damage)
		small_file_set_aside(path);
	if (nrecords > 0)
		*records = content;
	else if (content != NULL)
		pfree(content);
	return nrecords;
}

/*
 * keep_whole_records
 *		Have an array of the records that are whole where the content of a file was;
 *		returns how many there are.
 */
static int
keep_whole_records(const char *path, const SmallFileFormat *format, char *content, Size size,
				   bool *is_damaged)
{
	SmallFileHeader header = make_header(format);
	int			nrecords = 0;

	if (size < sizeof(header) || memcmp(content, &header, sizeof(header)) != 0)
	{
		*is_damaged = true;
		ereport(LOG,
				(errmsg("file \"%s\" is ignored, as it is damaged, or not in the format of this version of pg_cyclone",
						path)));
		return 0;
	}
	*is_damaged = (size - sizeof(header)) % record_bytes(format) != 0;
	for (int place = 0; record_offset(format, place + 1) <= (off_t) size; place++)
	{
		const char *record = content + record_offset(format, place);
		pg_crc32c	crc;

		memcpy(&crc, record + format->record_size, sizeof(crc));
		if (crc == 0)
			continue;
		if (!EQ_CRC32C(crc, checksum(record, format->record_size)))
			*is_damaged = true;
		else
			memmove(content + (Size) nrecords++ * format->record_size, record, format->record_size);
	}
	if (*is_damaged)
		ereport(LOG,
				(errmsg("file \"%s\" has damaged records, which are ignored", path)));
	return nrecords;
}

/* small_file_set_aside -- keep a file under another name. */
void
small_file_set_aside(const char *path)
{
	char		new_path[MAXPGPATH];

	snprintf(new_path, sizeof(new_path), "%s" SMALL_FILE_DAMAGED, path);
	if (rename(path, new_path) == 0)
		ereport(LOG,
				(errmsg("file \"%s\" is kept as \"%s\"", path, new_path)));
	else
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not rename file \"%s\" to \"%s\": %m", path, new_path)));
}

/* small_file_write -- write a whole file, in place of the old one. */
bool
small_file_write(const char *path, const SmallFileFormat *format,
				 const void *records, int nrecords, SmallFileSafety safety, int elevel)
{
	char		new_path[MAXPGPATH];
	int			fd;
	bool		is_written;
	int			error;

	Assert(nrecords >= 0 && nrecords <= format->max_records);

	snprintf(new_path, sizeof(new_path), "%s" SMALL_FILE_NEW, path);
	if (!make_folder(safety, elevel))
		return false;
	fd = open(new_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | PG_BINARY, pg_file_create_mode);
	is_written = fd >= 0 && write_content(fd, format, records, nrecords);
	error = errno;
	if (fd >= 0)
		close(fd);
	if (is_written && safety == SMALL_FILE_SURVIVES_POWER_CUT)
		return durable_rename(new_path, path, elevel) == 0;
	if (is_written && rename(new_path, path) == 0)
		return true;
	if (!is_written)
		errno = error;
	error = errno;
	(void) unlink(new_path);
	errno = error;
	ereport(elevel,
			(errcode_for_file_access(),
			 errmsg("could not write file \"%s\": %m", path)));
	return false;
}

/* small_file_put -- write one record to its place. */
bool
small_file_put(const char *path, const SmallFileFormat *format, int place, const void *record)
{
	const SmallFileHeader header = make_header(format);
	const pg_crc32c empty = 0;
	struct stat status;
	int			fd;
	bool		is_written;
	int			error;

	Assert(place >= 0 && place < format->max_records);

	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | PG_BINARY, pg_file_create_mode);
	if (fd < 0 && errno == ENOENT && MakePGDirectory(SMALL_FILE_FOLDER) == 0)
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | PG_BINARY, pg_file_create_mode);
	if (fd < 0)
		return false;
	is_written = fstat(fd, &status) == 0;
	errno = ENOSPC;				/* which a short write means */
	if (is_written && status.st_size == 0)
		is_written = pwrite(fd, &header, sizeof(header), 0) == sizeof(header);
	if (is_written && record != NULL)
		is_written = write_record(fd, format, place, record);
	else if (is_written)
		is_written = pwrite(fd, &empty, sizeof(empty),
							record_offset(format, place) + format->record_size) == sizeof(empty);
	error = errno;
	close(fd);
	errno = error;
	return is_written;
}

/* make_header -- what a file of this format begins with. */
static SmallFileHeader
make_header(const SmallFileFormat *format)
{
	SmallFileHeader header = {
		.magic = format->magic,
		.version = format->version,
		.record_size = format->record_size
	};

	header.crc = checksum(&header, offsetof(SmallFileHeader, crc));
	return header;
}

/* write_content -- write a whole file; false, and errno, if that fails. */
static bool
write_content(int fd, const SmallFileFormat *format, const void *records, int nrecords)
{
	const SmallFileHeader header = make_header(format);

	errno = ENOSPC;
	if (pwrite(fd, &header, sizeof(header), 0) != sizeof(header))
		return false;
	for (int i = 0; i < nrecords; i++)
		if (!write_record(fd, format, i, (const char *) records + (Size) i * format->record_size))
			return false;
	return true;
}

/* write_record -- write a record and its checksum; false, and errno, if that fails. */
static bool
write_record(int fd, const SmallFileFormat *format, int place, const void *record)
{
	pg_crc32c	crc = checksum(record, format->record_size);
	struct iovec parts[] = {
		{.iov_base = unconstify(void *, record),.iov_len = format->record_size},
		{.iov_base = &crc,.iov_len = sizeof(crc)}
	};

	errno = ENOSPC;
	return pg_pwritev(fd, parts, lengthof(parts), record_offset(format, place)) ==
		(ssize_t) record_bytes(format);
}

/* make_folder -- make the folder of small files, unless it is there. */
static bool
make_folder(SmallFileSafety safety, int elevel)
{
	if (MakePGDirectory(SMALL_FILE_FOLDER) == 0)
		return safety != SMALL_FILE_SURVIVES_POWER_CUT || fsync_fname_ext(".", true, false, elevel) == 0;
	if (errno == EEXIST)
		return true;
	ereport(elevel,
			(errcode_for_file_access(),
			 errmsg("could not create directory \"%s\": %m", SMALL_FILE_FOLDER)));
	return false;
}

/* checksum -- of these bytes; never 0, which marks an empty place. */
static pg_crc32c
checksum(const void *what, Size size)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, what, size);
	FIN_CRC32C(crc);
	return crc == 0 ? 1 : crc;
}

/* record_bytes -- how long a record is in its file. */
static Size
record_bytes(const SmallFileFormat *format)
{
	return format->record_size + sizeof(pg_crc32c);
}

/* record_offset -- where the record of a place begins in its file. */
static off_t
record_offset(const SmallFileFormat *format, int place)
{
	return sizeof(SmallFileHeader) + (off_t) place * record_bytes(format);
}
