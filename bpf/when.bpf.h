/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What --when says of a call's arguments, as tests that jump forward. User space makes them
 * (nodeagent/encode/predicate_code.py has the same layouts). Plain C without helpers: a unit
 * test runs it on the host, against the language's reference.
 */
#ifndef FAULTCTL_WHEN_BPF_H
#define FAULTCTL_WHEN_BPF_H

#define FC_WHEN_TESTS 16
#define FC_ARGUMENTS 6
#define FC_WHEN_YES 254

/* How an argument's register is read; the kernel ignores what is above its type. */
enum fc_width {
	FC_U64 = 0,
	FC_S64 = 1,
	FC_U32 = 2,
	FC_S32 = 3,
	FC_U16 = 4,
};

/* Relations of two numbers, as bits: a test names those that hold. */
#define FC_LESS 1
#define FC_EQUAL 2
#define FC_GREATER 4

/* The AND of a number and of some arguments. */
struct fc_term {
	__u64 number;
	__u8 arguments; /* bits */
	__u8 negative;  /* the number is */
	__u8 unused[6];
};

struct fc_test {
	struct fc_term left, right;
	__u8 relation;
	__u8 yes, no; /* the next test, further down, or the end */
	__u8 unused[5];
};

struct fc_when {
	__u8 widths[FC_ARGUMENTS];
	__u8 count;
	__u8 unused;
	struct fc_test tests[FC_WHEN_TESTS];
};
_Static_assert(sizeof(struct fc_when) == 648, "layout is shared with predicate_code.py");

struct fc_arguments {
	__u64 value[FC_ARGUMENTS];
	__u64 negative; /* bits of those that are below 0 */
};

/* Make numbers of raw registers: each has 65 bits then, the sign apart. */
static __always_inline void fc_widen(struct fc_arguments *arguments, const struct fc_when *when)
{
	arguments->negative = 0;
	for (__u32 at = 0; at < FC_ARGUMENTS; at++) {
		__u64 raw = arguments->value[at];
		__u32 width = when->widths[at];

		if (width == FC_U32)
			raw = (__u32)raw;
		if (width == FC_U16)
			raw = (__u16)raw;
		if (width == FC_S32)
			raw = (__s64)(__s32)raw;
		if (width == FC_S32 || width == FC_S64)
			arguments->negative |= raw >> 63 << at;
		arguments->value[at] = raw;
	}
}

static __always_inline __u64 fc_term_value(const struct fc_term *term,
					   const struct fc_arguments *arguments)
{
	__u64 value = term->number;

	for (__u32 at = 0; at < FC_ARGUMENTS; at++) {
		/* all ones where the argument does not count */
		__u64 other = (__u64)(term->arguments >> at & 1) - 1;

		value &= arguments->value[at] | other;
	}
	return value;
}

/* An AND is below 0 when everything in it is. */
static __always_inline __u64 fc_term_negative(const struct fc_term *term,
					      const struct fc_arguments *arguments)
{
	return term->negative & !(term->arguments & ~arguments->negative);
}

static __always_inline __u32 fc_relation(const struct fc_test *test,
					 const struct fc_arguments *arguments)
{
	__u64 left = fc_term_value(&test->left, arguments);
	__u64 right = fc_term_value(&test->right, arguments);
	__u64 below = fc_term_negative(&test->left, arguments);
	__u64 other = fc_term_negative(&test->right, arguments);

	if (below != other)
		return below ? FC_LESS : FC_GREATER;
	if (left == right)
		return FC_EQUAL;
	return left < right ? FC_LESS : FC_GREATER;
}

/* arguments: raw registers; they are numbers afterwards. */
static __always_inline int fc_when_holds(const struct fc_when *when,
					 struct fc_arguments *arguments)
{
	__u32 next = 0;

	fc_widen(arguments, when);
	for (__u32 at = 0; at < FC_WHEN_TESTS; at++) {
		const struct fc_test *test = &when->tests[at];

		if (at != next)
			continue;
		next = test->relation & fc_relation(test, arguments) ? test->yes : test->no;
	}
	return next == FC_WHEN_YES;
}

#endif
