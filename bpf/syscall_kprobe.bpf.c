/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A system call whose return value is chosen, 0 too: a kprobe at its entry (the call is
 * skipped) or a kretprobe at its end (the side effect is kept), by bpf_override_return.
 * Needs CONFIG_BPF_KPROBE_OVERRIDE. Both serve all functions; the attach cookie is the point.
 */
#include "syscall.bpf.h"

FC_LICENSE;

static __always_inline int override(void *ctx, struct fc_caller *caller)
{
	__s64 value = 0;

	if (fc_fails(bpf_get_attach_cookie(ctx) & (FC_POINTS - 1), caller, &value))
		bpf_override_return(ctx, value);
	return 0;
}

/* The function's one argument: the registers of the system call. */
static __always_inline __u64 registers(void *ctx)
{
	return fc_argument((__u64)ctx, 0);
}

static __always_inline __s64 result(void *ctx)
{
	if (FC_EXISTS(pt_regs___x86, orig_ax))
		return BPF_CORE_READ((struct pt_regs___x86 *)ctx, ax);
	return fc_argument((__u64)ctx, 0);
}

SEC("kprobe")
int fc_syscall_entry(void *ctx)
{
	struct fc_caller caller = { .regs = registers(ctx) };

	return override(ctx, &caller);
}

/* The function's argument is gone by then; the task still has its registers. */
SEC("kretprobe")
int fc_syscall_return(void *ctx)
{
	struct fc_caller caller = { .returned = result(ctx) + 1 };

	if (FC_HELPER_EXISTS(task_pt_regs))
		caller.regs = (__u64)bpf_task_pt_regs(bpf_get_current_task_btf());
	return override(ctx, &caller);
}
