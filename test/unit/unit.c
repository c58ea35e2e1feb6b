/*-------------------------------------------------------------------------
 *
 * unit.c
 *	  Runs the tests of a program, and stands for the server in it.
 *
 * Memory is malloc's, and nobody frees it but pfree.  An error goes to the nearest
 * PG_TRY, as in the server, or fails the test.  Functions that some version of the
 * server declares otherwise, or not at all, stand here without its header.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdarg.h>
#include <strings.h>

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/spin.h"

#include "unit.h"

/* The C library's, as the server's own are not here */
#undef fprintf
#undef printf
#undef qsort
#undef vsnprintf

const char *unit_error = NULL;
const char *unit_hint = NULL;
const char *unit_notice = NULL;
const char *unit_message = NULL;

/* How the server's clock is read, where its headers have more than a call of the system */
extern bool timing_initialized;
extern bool timing_tsc_enabled;
extern uint64 ticks_per_ns_scaled;
extern uint64 max_ticks_no_overflow;
bool		timing_initialized = true;
bool		timing_tsc_enabled = false;
uint64		ticks_per_ns_scaled = 0;
uint64		max_ticks_no_overflow = 0;

typedef struct UnitTest
{
	const char *name;
	void		(*test) (void);
	int			line;
} UnitTest;

static UnitTest tests[100];
static int	nadded = 0;
static sigjmp_buf end_of_test;
static char case_text[256] = "";
static int	ntests = 0;
static int	nfailed = 0;
static uint64 random_state = 0;
static int	error_level = 0;

/*
 * unit_add
 *		Add a test to those to be run, which are in the order of the file, whatever that of
 *		constructors is.
 */
void
unit_add(const char *name, void (*test) (void), int line)
{
	int			place = nadded++;

	if (nadded > lengthof(tests))
		abort();
	for (; place > 0 && tests[place - 1].line > line; place--)
		tests[place] = tests[place - 1];
	tests[place] = (UnitTest) {name, test, line};
}

/* unit_set_up -- for a program that has none of its own. */
__attribute__((weak)) void
unit_set_up(void)
{
}

/* main -- run all tests, in a program that doesn't do so itself. */
__attribute__((weak)) int
main(void)
{
	unit_set_up();
	for (int i = 0; i < nadded; i++)
		unit_run(tests[i].name, tests[i].test);
	return unit_end();
}

/*
 * unit_run
 *		Run a test, and say if it fails.
 */
void
unit_run(const char *name, void (*test) (void))
{
	sigjmp_buf	uncaught;

	ntests++;
	case_text[0] = '\0';
	random_state = 1;
	PG_exception_stack = &uncaught;
	if (sigsetjmp(uncaught, 0) != 0)
	{
		printf("%s: raises an error: %s (%s)\n", name, unit_message, case_text);
		nfailed++;
	}
	else if (sigsetjmp(end_of_test, 0) != 0)
	{
		printf("%s failed (%s)\n", name, case_text);
		nfailed++;
	}
	else
		test();
}

/* unit_end -- how it went, for main to return. */
int
unit_end(void)
{
	printf("%d tests, %d failed\n", ntests, nfailed);
	return nfailed == 0 && ntests > 0 ? 0 : 1;
}

/* unit_case -- what the test is at, to be said if it fails. */
void
unit_case(const char *format,...)
{
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(case_text, sizeof(case_text), format, arguments);
	va_end(arguments);
}

/* unit_fail -- end the test. */
void
unit_fail(const char *file, int line, const char *what)
{
	printf("%s:%d: %s\n", file, line, what);
	siglongjmp(end_of_test, 1);
}

/* unit_check_between -- end the test if a number isn't in bounds. */
void
unit_check_between(const char *file, int line, const char *what,
				   double actual, double least, double most)
{
	if (actual >= least && actual <= most)
		return;
	printf("%s:%d: %s is %.17g, not %.17g", file, line, what, actual, least);
	if (least != most)
		printf(" to %.17g", most);
	printf("\n");
	siglongjmp(end_of_test, 1);
}

/* unit_check_text -- end the test if a text, or NULL, is another. */
void
unit_check_text(const char *file, int line, const char *what,
				const char *actual, const char *expected)
{
	if (actual == expected ||
		(actual != NULL && expected != NULL && strcmp(actual, expected) == 0))
		return;
	printf("%s:%d: %s is \"%s\", not \"%s\"\n", file, line, what,
		   actual ? actual : "(null)", expected ? expected : "(null)");
	siglongjmp(end_of_test, 1);
}

/* unit_seed -- where chance begins; each test begins with 1. */
void
unit_seed(uint64 seed)
{
	random_state = seed;
}

/* unit_chance -- a number from 0 to below 1, by splitmix64. */
double
unit_chance(void)
{
	uint64		mixed = (random_state += UINT64CONST(0x9E3779B97F4A7C15));

	mixed = (mixed ^ (mixed >> 30)) * UINT64CONST(0xBF58476D1CE4E5B9);
	mixed = (mixed ^ (mixed >> 27)) * UINT64CONST(0x94D049BB133111EB);
	return (double) ((mixed ^ (mixed >> 31)) >> 11) / (UINT64CONST(1) << 53);
}

/* unit_number -- a whole one, both bounds included. */
int
unit_number(int least, int most)
{
	return least + (int) (unit_chance() * (most - least + 1));
}

/* ---------------------------------------------------------------------------
 * What there is of a server
 * ---------------------------------------------------------------------------
 */

sigjmp_buf *PG_exception_stack = NULL;
ErrorContextCallback *error_context_stack = NULL;
volatile	sig_atomic_t InterruptPending = false;
int			ParallelWorkerNumber = -1;
TransactionId unit_updater = 0;

/* formatted -- a text with its arguments. */
static const char *
formatted(const char *format, va_list arguments)
{
	char	   *text = malloc(1024);

	vsnprintf(text, 1024, format, arguments);
	return text;
}

/* ExceptionalCondition -- an assertion fails, and with it the test. */
void
ExceptionalCondition(const char *condition, const char *file, int line)
{
	unit_fail(file, line, condition);
}

/* errstart -- a message begins. */
bool
errstart(int elevel, const char *domain)
{
	error_level = elevel;
	unit_message = unit_hint = NULL;
	return true;
}

/* errstart_cold -- likewise. */
bool		errstart_cold(int elevel, const char *domain) __attribute__((alias("errstart")));

/* errcode -- not looked at. */
int
errcode(int sqlerrcode)
{
	return 0;
}

/* errmsg -- the message's text. */
int
errmsg(const char *format,...)
{
	va_list		arguments;

	va_start(arguments, format);
	unit_message = formatted(format, arguments);
	va_end(arguments);
	return 0;
}

/* errmsg_internal -- likewise. */
int			errmsg_internal(const char *format,...) __attribute__((alias("errmsg")));

/* errhint -- what to do about it. */
int
errhint(const char *format,...)
{
	va_list		arguments;

	va_start(arguments, format);
	unit_hint = formatted(format, arguments);
	va_end(arguments);
	return 0;
}

/* errfinish -- an error goes to the nearest PG_TRY, anything else is kept. */
void
errfinish(const char *file, int line, const char *function)
{
	if (error_level >= ERROR)
		siglongjmp(*PG_exception_stack, 1);
	unit_notice = unit_message;
}

/* pg_re_throw -- to the next one. */
void
pg_re_throw(void)
{
	siglongjmp(*PG_exception_stack, 1);
}

/* ProcessInterrupts -- there are none. */
void
ProcessInterrupts(void)
{
}

/* s_lock -- nobody else has a spinlock here. */
int
s_lock(volatile slock_t *lock, const char *file, int line, const char *function)
{
	return 0;
}

/* TransactionIdPrecedes -- as the server compares them. */
bool
TransactionIdPrecedes(TransactionId a, TransactionId b)
{
	if (a < 3 || b < 3)
		return a < b;
	return (int32) (a - b) < 0;
}

/* HeapTupleGetUpdateXid -- who has updated a row that several have locked. */
TransactionId
HeapTupleGetUpdateXid(const void *tuple)
{
	return unit_updater;
}

/* ItemPointerEquals -- do they point at the same place? */
bool
ItemPointerEquals(const void *a, const void *b)
{
	return memcmp(a, b, 3 * sizeof(uint16)) == 0;
}

/* palloc -- memory. */
void *
palloc(Size size)
{
	return malloc(size);
}

/* palloc0 -- memory, cleared. */
void *
palloc0(Size size)
{
	return calloc(1, size);
}

/* pfree -- give it back. */
void
pfree(void *pointer)
{
	free(pointer);
}

/* pg_snprintf -- the C library's. */
int
pg_snprintf(char *text, size_t size, const char *format,...)
{
	va_list		arguments;
	int			length;

	va_start(arguments, format);
	length = vsnprintf(text, size, format, arguments);
	va_end(arguments);
	return length;
}

/* pg_qsort -- the C library's. */
void
pg_qsort(void *base, size_t number, size_t size, int (*compare) (const void *, const void *))
{
	qsort(base, number, size, compare);
}

/* pg_strcasecmp -- without regard to case. */
int
pg_strcasecmp(const char *a, const char *b)
{
	return strcasecmp(a, b);
}

/* lappend -- a list that is one longer; the old one is not to be used any more. */
List *
lappend(List *list, void *datum)
{
	int			length = list_length(list);
	List	   *longer = palloc0(sizeof(List));

	longer->type = T_List;
	longer->length = longer->max_length = length + 1;
	longer->elements = palloc0((length + 1) * sizeof(ListCell));
	for (int i = 0; i < length; i++)
		longer->elements[i] = list->elements[i];
	lfirst(&longer->elements[length]) = datum;
	return longer;
}
