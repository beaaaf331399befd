/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A system call that is skipped and returns an error: fmod_ret on its function, such as
 * __x64_sys_read. Needs CONFIG_FUNCTION_ERROR_INJECTION and BTF. The function is skipped
 * only for a value other than 0 (arch/x86/net/bpf_jit_comp.c, invoke_bpf_mod_ret).
 * One object is loaded for each function: its BTF id is fixed at load.
 */
#include "syscall.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u32 fc_point SEC(".rodata.fc") = 0;

/* long: the trampoline stores all 64 bits of what is returned. */
SEC("fmod_ret")
long BPF_PROG(fc_syscall_modret, void *regs, long ret)
{
	__s64 value = 0;

	if (ret || !fc_fails(fc_point, (__u64)regs, &value))
		return ret;
	return value;
}
