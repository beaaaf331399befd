/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A system call that an LSM hook refuses, on kernels without error injection: the hook is
 * passed once on the way of the call, before it does anything. The number in the task's own
 * registers tells which call it is, so that exec's opens, or io_uring's reads, stay apart.
 * One object is loaded for each hook.
 */
#include "syscall.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define FC_LSM_POINTS 768
#define FC_MAX_ERRNO 4095
#define FC_USER_CS 0x33 /* arch/x86/include/asm/segment.h: 64-bit user code */

const volatile __u32 fc_hook SEC(".rodata.fc") = 0;

/* The native system call that the task is in; FC_NUMBERS and more: none. */
static __always_inline __u32 current_number(__u64 *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();

	*regs = (__u64)bpf_task_pt_regs(task);
	if (bpf_core_field_exists(((struct pt_regs___x86 *)0)->orig_ax)) {
		struct pt_regs___x86 *x86 = (void *)*regs;

		if ((BPF_CORE_READ(x86, cs) & 0xffff) != FC_USER_CS)
			return FC_NUMBERS;
		return BPF_CORE_READ(x86, orig_ax);
	}
	if (bpf_core_field_exists(((struct pt_regs___arm64 *)0)->syscallno))
		return BPF_CORE_READ((struct pt_regs___arm64 *)*regs, syscallno);
	return FC_NUMBERS;
}

SEC("lsm")
int fc_syscall_lsm(__u64 *ctx)
{
	__u64 regs = 0;
	__u32 number = current_number(&regs);
	struct fc_number *known = bpf_map_lookup_elem(&fc_numbers, &number);
	__s64 value = 0;

	if (!known || !known->call || known->hook != fc_hook)
		return 0;
	if (!fc_fails(FC_LSM_POINTS + known->call - 1, regs, &value))
		return 0;
	if (value < -FC_MAX_ERRNO || value > 0)
		return 0;
	return value;
}
