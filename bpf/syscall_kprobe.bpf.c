/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A system call whose return value is chosen, 0 too: a kprobe at its entry (the call is
 * skipped) or a kretprobe at its end (the side effect is kept), by bpf_override_return.
 * Needs CONFIG_BPF_KPROBE_OVERRIDE. Both serve all functions; the attach cookie is the point.
 */
#include "syscall.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline int override(void *ctx, __u64 regs)
{
	__s64 value = 0;

	if (fc_fails(bpf_get_attach_cookie(ctx) & (FC_POINTS - 1), regs, &value))
		bpf_override_return(ctx, value);
	return 0;
}

SEC("kprobe")
int fc_syscall_entry(void *ctx)
{
	return override(ctx, fc_first_argument((__u64)ctx));
}

/* The arguments are gone by then: no filter that needs them comes here. */
SEC("kretprobe")
int fc_syscall_return(void *ctx)
{
	return override(ctx, 0);
}
