/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * A system call that an LSM hook refuses, on kernels without error injection: the hook is
 * passed once on the way of the call, before it does anything. The number in the task's own
 * registers tells which call it is, so that exec's opens, or io_uring's reads, stay apart.
 * One object is loaded for each hook.
 */
#include "syscall.bpf.h"

FC_LICENSE;

#define FC_LSM_POINTS 768
#define FC_MAX_ERRNO 4095
#define FC_EINVAL 22
#define FC_SB_KERNMOUNT (1UL << 22) /* include/linux/fs.h */
#define FC_USER_CS 0x33 /* arch/x86/include/asm/segment.h: 64-bit user code */

/* What a hook's first argument is. */
enum fc_hooked {
	FC_HOOKED_OTHER = 0,
	FC_HOOKED_FILE = 1,   /* the file of the call's descriptor */
	FC_HOOKED_OPENED = 2, /* a file that is just being opened */
	FC_HOOKED_PATH = 3,
};

FC_PRESET(fc_hook);
FC_PRESET(fc_hooked);

/* The native system call that the task is in; FC_NUMBERS and more: none. */
static __always_inline __u32 current_number(__u64 *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();

	*regs = (__u64)bpf_task_pt_regs(task);
	if (FC_EXISTS(pt_regs___x86, orig_ax)) {
		struct pt_regs___x86 *x86 = (void *)*regs;

		if ((BPF_CORE_READ(x86, cs) & 0xffff) != FC_USER_CS)
			return FC_NUMBERS;
		return BPF_CORE_READ(x86, orig_ax);
	}
	if (FC_EXISTS(pt_regs___arm64, syscallno))
		return BPF_CORE_READ((struct pt_regs___arm64 *)*regs, syscallno);
	return FC_NUMBERS;
}

/* A union file system passes the hook once more, for the file below: on a mount that is in
 * no namespace (MNT_NS_INTERNAL), like those of pipes and sockets, which are the kernel's. */
static __always_inline bool is_below(struct path *path)
{
	struct vfsmount *mnt = BPF_CORE_READ(path, mnt);
	struct mount *mount = (void *)mnt - FC_OFFSET(mount, mnt);

	return (__s64)BPF_CORE_READ(mount, mnt_ns) == -FC_EINVAL &&
	       !(BPF_CORE_READ(mnt, mnt_root, d_inode, i_sb, s_flags) & FC_SB_KERNMOUNT);
}

/* Whether this is the call's own passage of the hook; then what it is about is known. */
static __always_inline bool is_own(__u64 argument, struct fc_caller *caller)
{
	struct file *file = (void *)argument;

	if (FC_VALUE(fc_hooked) == FC_HOOKED_FILE)
		return file == fc_file_of(fc_argument(caller->regs, 0));
	if (FC_VALUE(fc_hooked) == FC_HOOKED_PATH)
		caller->path = argument;
	if (FC_VALUE(fc_hooked) == FC_HOOKED_OPENED) {
		/* Before Linux 6.7 the file below has the path of the one above. */
		if (BPF_CORE_READ(file, f_inode) != BPF_CORE_READ(file, f_path.dentry, d_inode))
			return false;
		caller->path = argument + FC_OFFSET(file, f_path);
	}
	return !caller->path || !is_below((void *)caller->path);
}

SEC("lsm")
int fc_syscall_lsm(__u64 *ctx)
{
	struct fc_caller caller = {};
	__u32 number = current_number(&caller.regs);
	struct fc_number *known = bpf_map_lookup_elem(FC_MAP(fc_numbers), &number);
	__s64 value = 0;

	if (!known || !known->call || known->hook != FC_VALUE(fc_hook) || !is_own(ctx[0], &caller))
		return 0;
	if (!fc_fails(FC_LSM_POINTS + known->call - 1, &caller, &value))
		return 0;
	if (value < -FC_MAX_ERRNO)
		return 0;
	FC_OPAQUE(value); /* or it becomes one comparison, of which the verifier learns nothing */
	if (value > 0)
		return 0;
	return value;
}
