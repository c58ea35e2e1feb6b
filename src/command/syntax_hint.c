/*-------------------------------------------------------------------------
 *
 * syntax_hint.c
 *	  Says what to type where the server's grammar refuses a VACUUM with options of ours,
 *	  such as VACUUM FULL INPLACE t.  No hook comes before the grammar, so the hint is added
 *	  when the error is reported.
 *
 * Portions Copyright (c) 2026, the pg_cyclone developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "tcop/tcopprot.h"

#include "command/syntax_hint.h"

#define PARENTHESES(statement) gettext_noop("Options are in parentheses, as in " statement ".")

/* A word behind VACUUM, or VACUUM FULL, and what to type instead. */
static const struct
{
	const char *word;
	const char *hint;
}			options[] =
{
	{"inplace", PARENTHESES("VACUUM (FULL INPLACE) t")},
	{"in", PARENTHESES("VACUUM (FULL INPLACE) t")},
	{"in_place", PARENTHESES("VACUUM (FULL INPLACE) t")},
	{"rewrite", PARENTHESES("VACUUM (FULL REWRITE) t")},
	{"concurrently", gettext_noop("VACUUM (FULL INPLACE) t makes a table small while other sessions use it.")},
	{"dry_run", PARENTHESES("VACUUM (DRY_RUN) t")},
	{"dryrun", PARENTHESES("VACUUM (DRY_RUN) t")},
	{"dry", PARENTHESES("VACUUM (DRY_RUN) t")},
	{"adaptive_delay", PARENTHESES("VACUUM (ADAPTIVE_DELAY) t")},
	{"parallel", PARENTHESES("VACUUM (PARALLEL 2) t")},
};

static emit_log_hook_type previous_emit_log_hook = NULL;

static void add_hint(ErrorData *edata);
static const char *hint_for(const char *query);
static bool is_word(const char *word, size_t length, const char *known);
static bool next_word(const char **at, const char **word, size_t *length);

/* syntax_hint_init -- see syntax_hint.h. */
void
syntax_hint_init(void)
{
	previous_emit_log_hook = emit_log_hook;
	emit_log_hook = add_hint;
}

/* add_hint -- the emit_log hook, which comes before the client gets the error. */
static void
add_hint(ErrorData *edata)
{
	/* the grammar's own errors come from here */
	if (edata->elevel == ERROR && edata->hint == NULL && debug_query_string != NULL &&
		edata->funcname != NULL && strcmp(edata->funcname, "scanner_yyerror") == 0)
	{
		const char *hint = hint_for(debug_query_string);

		if (hint != NULL)
			edata->hint = MemoryContextStrdup(edata->assoc_context, _(hint));
	}
	if (previous_emit_log_hook)
		previous_emit_log_hook(edata);
}

/* hint_for -- what to type instead of a statement that the grammar has refused; NULL if it isn't clear. */
static const char *
hint_for(const char *query)
{
	const char *word;
	size_t		length;

	if (!next_word(&query, &word, &length) || !is_word(word, length, "vacuum"))
		return NULL;
	while (next_word(&query, &word, &length))
	{
		for (int i = 0; i < lengthof(options); i++)
		{
			if (is_word(word, length, options[i].word))
				return options[i].hint;
		}
		if (!is_word(word, length, "full"))
			return NULL;
	}
	return NULL;
}

/* is_word -- is a word of that length this one, whatever the case? */
static bool
is_word(const char *word, size_t length, const char *known)
{
	return length == strlen(known) && pg_strncasecmp(word, known, length) == 0;
}

/* next_word -- the next word of letters and underscores; false if there is none. */
static bool
next_word(const char **at, const char **word, size_t *length)
{
	const char *end;

	while (**at != '\0' && !isalpha((unsigned char) **at))
		(*at)++;
	for (end = *at; isalpha((unsigned char) *end) || *end == '_'; end++)
		;
	*word = *at;
	*length = end - *at;
	*at = end;
	return *length > 0;
}
