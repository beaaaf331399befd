/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A system call that is skipped and returns an error: fmod_ret on its function, such as
 * __x64_sys_read. Needs CONFIG_FUNCTION_ERROR_INJECTION and BTF. The function is skipped
 * only for a value other than 0 (arch/x86/net/bpf_jit_comp.c, invoke_bpf_mod_ret).
 * One object is loaded for each function: its BTF id is fixed at load.
 */
#include "syscall.bpf.h"

FC_LICENSE;

FC_PRESET(fc_point);

/* long: the trampoline stores all 64 bits of what is returned. */
SEC("fmod_ret")
long fc_syscall_modret(__u64 *ctx)
{
	long ret = ctx[1];
	struct fc_caller caller = { .regs = ctx[0] };
	__s64 value = 0;

	if (ret || !fc_fails(FC_VALUE(fc_point), &caller, &value))
		return ret;
	return value;
}
