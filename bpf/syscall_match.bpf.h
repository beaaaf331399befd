/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What a call is about: its arguments, the file behind it, its path, its device.
 * Included by syscall.bpf.h.
 *
 * A path is compared while it is walked, from its last character up to the caller's root
 * directory, through mounts: so nothing of it is ever put together, and it is the path that
 * the caller would write, symbolic links resolved. The patterns of a slot are one automaton
 * that reads backwards (nodeagent/encode/globs.py).
 */
#ifndef FAULTCTL_SYSCALL_MATCH_BPF_H
#define FAULTCTL_SYSCALL_MATCH_BPF_H

#define FC_WHEN_SLOT_SHIFT 8
#define FC_GLOB_START 1
#define FC_GLOB_STATES 0x7fff
#define FC_GLOB_ACCEPTS 0x8000 /* the path may begin here */
#define FC_GLOB_SLOT_SHIFT 16
#define FC_GLOB_EXE (1U << 22)
#define FC_NAME_MAX 255
#define FC_MAX_DEPTH 64
#define FC_S_IFBLK 6
#define FC_S_IFSOCK 12

/* ---- the kernel's structures, only the members that are read ---- */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct vfsmount {
	struct dentry *mnt_root;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	void *mnt_ns;
};

#pragma clang attribute pop

/* ---- layouts shared with user space (nodeagent/encode/syscall_maps.py) ---- */

/* Where a call's file is, and an address that it names. */
enum fc_subject {
	FC_SUBJECT_NONE = 0,
	FC_SUBJECT_FD = 1,     /* the descriptor in its first argument */
	FC_SUBJECT_OPENED = 2, /* the descriptor that it returns */
};

enum fc_named {
	FC_NAMED_NONE = 0,
	FC_NAMED_SECOND = 1, /* a sockaddr, the second argument */
	FC_NAMED_FIFTH = 2,
	FC_NAMED_MSGHDR = 3, /* that of a msghdr, the second argument */
};

struct fc_call_info {
	__u8 subject; /* enum fc_subject */
	__u8 named;   /* enum fc_named */
	__u16 unused;
};

struct fc_glob_row {
	__u16 next[256];
};

#ifndef FC_BCC
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FC_MAX_CALLS);
	__type(key, __u32);
	__type(value, struct fc_call_info);
} fc_call_info SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct fc_glob_row);
} fc_globs SEC(".maps");

/* Slot and call -> what --when says of the call's arguments. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct fc_when);
} fc_whens SEC(".maps");
#endif

/* ---- arguments ---- */

FC_SUBPROG_3(int, fc_arguments_match, __u64, slot, __u64, call, __u64, regs)
{
	__u32 key = slot << FC_WHEN_SLOT_SHIFT | (call & (FC_MAX_CALLS - 1));
	struct fc_when *when = bpf_map_lookup_elem(FC_MAP(fc_whens), &key);
	struct fc_arguments arguments = {};

	if (!when || !regs)
		return 0;
	for (__u32 at = 0; at < FC_ARGUMENTS; at++)
		arguments.value[at] = fc_argument(regs, at);
	return fc_when_holds(when, &arguments);
}

/* ---- paths ---- */
static __always_inline __u64 fc_glob_next(__u64 automaton, __u64 state, __u8 character)
{
	__u32 key = automaton | (state & FC_GLOB_STATES);
	struct fc_glob_row *row = bpf_map_lookup_elem(FC_MAP(fc_globs), &key);

	return row ? row->next[character] : 0;
}

/* The state after one name, read backwards, and the slash before it. */
FC_SUBPROG_3(int, fc_glob_name, __u64, at, __u64, automaton, __u64, state)
{
	struct dentry *dentry = (void *)at;
	const unsigned char *name = BPF_CORE_READ(dentry, d_name.name);
	__u32 len = BPF_CORE_READ(dentry, d_name.len);

	for (__u32 done = 0; done < FC_NAME_MAX; done++) {
		__u8 character = 0;

		if (done >= len || !(state & FC_GLOB_STATES))
			break;
		bpf_probe_read_kernel(&character, 1, name + len - 1 - done);
		state = fc_glob_next(automaton, state, character);
	}
	return fc_glob_next(automaton, state, '/');
}

/* 1: the path, as the caller would write it, is one that the automaton takes. */
FC_SUBPROG_2(int, fc_path_matches, __u64, at, __u64, automaton)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct path *path = (void *)at;
	struct dentry *root = BPF_CORE_READ(task, fs, root.dentry);
	struct dentry *dentry = BPF_CORE_READ(path, dentry);
	struct vfsmount *top = BPF_CORE_READ(task, fs, root.mnt);
	struct vfsmount *mnt = BPF_CORE_READ(path, mnt);
	__u64 state = FC_GLOB_START, inside = FC_OFFSET(mount, mnt);
	bool named = false;

	if (!FC_EXISTS(mount, mnt_parent))
		return 0; /* without BTF it is not known: no plan gets here */
	for (__u32 depth = 0; depth < FC_MAX_DEPTH; depth++) {
		struct dentry *parent;

		if (!dentry || !mnt)
			return 0;
		if (dentry == root && mnt == top) {
			if (!named)
				state = fc_glob_next(automaton, state, '/');
			return !!(state & FC_GLOB_ACCEPTS);
		}
		if (dentry == BPF_CORE_READ(mnt, mnt_root)) {
			struct mount *mount = (void *)mnt - inside;
			struct mount *below = BPF_CORE_READ(mount, mnt_parent);

			if (below == mount)
				return 0; /* not below the caller's root, or a private mount */
			dentry = BPF_CORE_READ(mount, mnt_mountpoint);
			mnt = (void *)below + inside;
			continue;
		}
		parent = BPF_CORE_READ(dentry, d_parent);
		if (parent == dentry)
			return 0; /* a pipe, a socket: it has no path */
		state = fc_glob_name((__u64)dentry, automaton, state);
		if (!(state & FC_GLOB_STATES))
			return 0;
		named = true;
		dentry = parent;
	}
	return 0;
}

static __always_inline bool fc_exe_matches(__u64 slot)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct file *exe = BPF_CORE_READ(task, mm, exe_file);

	return exe && fc_path_matches((__u64)exe + FC_OFFSET(file, f_path),
				      FC_GLOB_EXE | slot << FC_GLOB_SLOT_SHIFT);
}

#include "syscall_net.bpf.h"

/* ---- all of it ---- */

/* Whether the file or socket behind a call is one that the slot asks for. */
static __always_inline bool fc_subject_passes(const struct fc_call_slot *slot, __u32 number,
					      __u32 call, const struct fc_caller *caller)
{
	struct fc_call_info *info = bpf_map_lookup_elem(FC_MAP(fc_call_info), &call);
	struct path *path = (void *)caller->path;
	struct inode *inode;
	__u32 type;

	if (!info)
		return false;
	if (!path) {
		struct file *file = NULL;

		if (info->subject == FC_SUBJECT_FD && caller->regs)
			file = fc_file_of(fc_argument(caller->regs, 0));
		else if (info->subject == FC_SUBJECT_OPENED && caller->returned > 0)
			file = fc_file_of(caller->returned - 1);
		if (!file)
			return false;
		path = (void *)file + FC_OFFSET(file, f_path);
	}
	inode = BPF_CORE_READ(path, dentry, d_inode);
	type = BPF_CORE_READ(inode, i_mode) >> FC_S_IFMT_SHIFT;
	if (slot->fd_types && !(slot->fd_types >> type & 1))
		return false;
	if (slot->flags & FC_CALL_DEVICE && BPF_CORE_READ(inode, i_sb, s_dev) != slot->device &&
	    !(type == FC_S_IFBLK && BPF_CORE_READ(inode, i_rdev) == slot->device))
		return false;
	if (slot->flags & FC_CALL_NET &&
	    (type != FC_S_IFSOCK || !fc_net_matches(inode, number, caller->regs, info->named)))
		return false;
	return !(slot->flags & FC_CALL_FILES) ||
	       fc_path_matches((__u64)path, (__u64)number << FC_GLOB_SLOT_SHIFT);
}

#endif
