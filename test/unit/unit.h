/*-------------------------------------------------------------------------
 *
 * unit.h
 *	  Tests of code that needs no server.
 *
 * A test program includes the source that it tests, so that its static functions
 * can be called, and is linked with unit.c, which has what there is of a server.
 * Functions that aren't called are left out when it is linked, and with them all that
 * they would need; what else is needed the test program makes up.  Compiled and
 * run by test/pytest/test_units.py, with assertions.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef CYCLONE_UNIT_H
#define CYCLONE_UNIT_H

/* Each ends the test that it is in, if it isn't so. */
#define CHECK(condition) \
	((condition) ? (void) 0 : unit_fail(__FILE__, __LINE__, #condition))
#define CHECK_EQ(actual, expected) \
	unit_check_between(__FILE__, __LINE__, #actual, actual, expected, expected)
#define CHECK_BETWEEN(least, actual, most) \
	unit_check_between(__FILE__, __LINE__, #actual, actual, least, most)
#define CHECK_TEXT(actual, expected) \
	unit_check_text(__FILE__, __LINE__, #actual, actual, expected)

/* Define a test; unless the program has a main of its own, all run in the order of the file. */
#define UNIT_TEST(test) \
	static void test(void); \
	__attribute__((constructor)) static void add_##test(void) { unit_add(#test, test, __LINE__); } \
	static void test(void)
#define UNIT_RUN(test)	unit_run(#test, test)

/* Run a statement: the message of the error that it raises, into unit_error, or NULL. */
#define UNIT_TRY(statement) \
	do { \
		unit_error = unit_hint = unit_notice = NULL; \
		PG_TRY(); \
		{ \
			statement; \
		} \
		PG_CATCH(); \
		{ \
			unit_error = unit_message; \
		} \
		PG_END_TRY(); \
	} while (0)

extern const char *unit_error;	/* set by UNIT_TRY */
extern const char *unit_hint;	/* of an error or notice, or NULL */
extern const char *unit_notice; /* of less than an error, the last one */
extern const char *unit_message;
extern TransactionId unit_updater;	/* who has updated a row with a multixact */

extern void unit_add(const char *name, void (*test) (void), int line);
extern void unit_set_up(void);	/* before all tests, if a program has it */
extern void unit_run(const char *name, void (*test) (void));
extern int	unit_end(void);
extern void unit_case(const char *format,...) pg_attribute_printf(1, 2);
extern _Noreturn void unit_fail(const char *file, int line, const char *what);
extern void unit_check_between(const char *file, int line, const char *what,
							   double actual, double least, double most);
extern void unit_check_text(const char *file, int line, const char *what,
							const char *actual, const char *expected);

extern void unit_seed(uint64 seed);
extern double unit_chance(void);
extern int	unit_number(int least, int most);

#endif							/* CYCLONE_UNIT_H */
