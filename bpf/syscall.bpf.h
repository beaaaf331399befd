/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the programs that fail system calls share: maps (one set serves all of them, each
 * object reuses the descriptors of the first), and the decision whether a call fails.
 * nodeagent/encode/syscall_maps.py has the same layouts in Python.
 *
 * A call comes here at a point: one function that is hooked in one way. What it costs an
 * untargeted process is the point's mask (an array), its thread group (a hash), and one
 * ancestor for each depth at which a targeted cgroup lies; nothing grows with the faults.
 */
#ifndef FAULTCTL_SYSCALL_BPF_H
#define FAULTCTL_SYSCALL_BPF_H

#include "loader.bpf.h"

/* ---- the kernel's structures, only the members that are read ---- */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	__u32 s_dev;
	unsigned long s_flags;
};

struct inode {
	unsigned short i_mode;
	__u32 i_rdev;
	struct super_block *i_sb;
};

struct qstr {
	__u32 len;
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};

struct vfsmount;

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct fs_struct {
	struct path root;
};

struct file {
	struct path f_path;
	struct inode *f_inode;
};

struct mm_struct {
	struct file *exe_file;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct task_struct {
	unsigned int flags;
	int pid;
	int tgid;
	__u64 start_boottime;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct mm_struct *mm;
	struct fs_struct *fs;
	struct files_struct *files;
	struct signal_struct *signal;
};

/* Two flavours of one structure: which of them exists tells the architecture. */
struct pt_regs___x86 {
	unsigned long di, si, dx, r10, r8, r9, ax, orig_ax, cs;
};

struct pt_regs___arm64 {
	__u64 regs[31];
	__u64 orig_x0;
	int syscallno;
};

#pragma clang attribute pop

/* ---- layouts shared with user space ---- */
#define FC_MAX_SLOTS 64
#define FC_MAX_CALLS 256
#define FC_POINTS 2048 /* eight ways of hooking, FC_MAX_CALLS each */
#define FC_NUMBERS 512
#define FC_LEVELS 8
#define FC_COMM_LEN 16
#define FC_ALWAYS_PPM 1000000U
#define FC_TICK_NS 10000000ULL /* USER_HZ is 100: the unit of /proc/PID/stat */
#define FC_PF_KTHREAD 0x00200000U
#define FC_PF_IO_WORKER 0x00000010U
#define FC_S_IFMT_SHIFT 12

#define FC_CALL_UID (1U << 0)     /* only this real user id */
#define FC_CALL_RUNTIME (1U << 1) /* spare the node's own programs, by name */
#define FC_CALL_FILES (1U << 2)   /* only files whose path its automaton takes */
#define FC_CALL_EXE (1U << 3)     /* only programs whose path its other one takes */
#define FC_CALL_DEVICE (1U << 4)  /* only files on this device, or the device itself */
#define FC_CALL_NET (1U << 5)     /* only sockets with such ends */
#define FC_CALL_WHEN (1U << 6)    /* only calls whose arguments are such */

struct fc_call_slot {
	__s64 value; /* what the call returns */
	__u64 seed;
	__u64 first;   /* only so many of the matching calls; 0: no such end */
	__u64 at_most; /* so many hits and no more; 0: no such end */
	__u32 every;   /* each n-th of the matching calls; 0 or 1: each */
	__u32 rate_ppm;
	__u32 flags;
	__u32 fd_types; /* bits of S_IFMT >> 12; 0: whatever it is */
	__u32 uid;
	__u32 generation; /* tells this fault from the slot's earlier ones */
	__u32 device;     /* as the kernel holds it: major << 20 | minor */
	__u32 unused;
};
_Static_assert(sizeof(struct fc_call_slot) == 64, "layout is shared with syscall_maps.py");

struct fc_call_stats {
	__u64 seen;   /* calls in scope that pass the filters */
	__u64 hits;
	__u64 taken;  /* of the budget; may pass it */
	__u64 spared; /* calls of programs that are never hit */
	__u64 lost;   /* children of a tree that found no room */
	__u64 first_ns, last_ns; /* CLOCK_BOOTTIME, of hits */
};
_Static_assert(sizeof(struct fc_call_stats) == 56, "layout is shared with syscall_maps.py");

struct fc_hits {
	__u64 seen, hits, first_ns, last_ns;
	char comm[FC_COMM_LEN];
};

struct fc_hit_key {
	__u32 slot, generation, call, tgid;
};

struct fc_process {
	__u64 start_ticks;
	__u64 slots;
	__u64 tree; /* of these, the ones that its children inherit */
};

struct fc_control {
	__u32 agent;  /* thread group; its children are its helpers */
	__u32 tgids;  /* not 0: fc_tgids has something in it */
	__u32 levels; /* how many of `level` are in use */
	__u32 level[FC_LEVELS];
	__u32 unused;
};
_Static_assert(sizeof(struct fc_control) == 48, "layout is shared with syscall_maps.py");

struct fc_number {
	__u16 call; /* plus 1: 0 is none */
	__u16 hook;
};

/* What a function that the verifier checks by itself gets of the caller. The first two
 * are only to be read with bpf_probe_read_kernel. */
struct fc_caller {
	__u64 regs;     /* 0: not known */
	__u64 path;     /* struct path of what the call is about; 0: by its arguments */
	__s64 returned; /* after the call: its result and 1; 0: before it */
};

#ifndef FC_BCC
/* ---- maps ---- */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fc_control);
} fc_control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FC_POINTS);
	__type(key, __u32);
	__type(value, __u64);
} fc_points SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct fc_process);
} fc_tgids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u64);
	__type(value, __u64);
} fc_cgroups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct fc_call_slot);
} fc_call_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct fc_call_stats);
} fc_call_stats SEC(".maps");

/* By slot, call and process; what was used longest ago gives way. tgid 0: all of them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct fc_hit_key);
	__type(value, struct fc_hits);
} fc_hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32);
	__uint(key_size, FC_COMM_LEN);
	__uint(value_size, 1);
} fc_spared SEC(".maps");

/* Native system call number -> call and LSM hook. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FC_NUMBERS);
	__type(key, __u32);
	__type(value, struct fc_number);
} fc_numbers SEC(".maps");
#endif

/* ---- who is calling ---- */
static __always_inline __u64 fc_start_ticks(struct task_struct *task)
{
	return BPF_CORE_READ(task, group_leader, start_boottime) / FC_TICK_NS;
}

/* Slots whose target the current task belongs to. */
static __always_inline __u64 fc_scope(const struct fc_control *control)
{
	__u64 slots = 0;

	if (control->tgids) {
		__u32 tgid = bpf_get_current_pid_tgid() >> 32;
		struct fc_process *process = bpf_map_lookup_elem(FC_MAP(fc_tgids), &tgid);

		if (process && process->start_ticks ==
				       fc_start_ticks((void *)bpf_get_current_task()))
			slots = process->slots;
	}
	for (__u32 at = 0; at < FC_LEVELS; at++) {
		__u64 id, *found;

		if (at >= control->levels)
			break;
		id = bpf_get_current_ancestor_cgroup_id(control->level[at]);
		found = id ? bpf_map_lookup_elem(FC_MAP(fc_cgroups), &id) : NULL;
		if (found)
			slots |= *found;
	}
	return slots;
}

/* The agent, its helpers, PID 1 and kernel threads are never hit, whatever the scope. */
static __always_inline bool fc_is_spared(const struct fc_call_slot *slot)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u32 tgid = bpf_get_current_pid_tgid() >> 32, zero = 0;
	struct fc_control *control = bpf_map_lookup_elem(FC_MAP(fc_control), &zero);
	char comm[FC_COMM_LEN] = {};

	if (!control || tgid <= 1 || tgid == control->agent)
		return true;
	if (BPF_CORE_READ(task, flags) & (FC_PF_KTHREAD | FC_PF_IO_WORKER))
		return true;
	if ((__u32)BPF_CORE_READ(task, real_parent, tgid) == control->agent)
		return true;
	if (!(slot->flags & FC_CALL_RUNTIME))
		return false;
	bpf_get_current_comm(comm, sizeof(comm));
	return bpf_map_lookup_elem(FC_MAP(fc_spared), comm) != NULL;
}

/* ---- what is called ---- */

/* The n-th argument, from 0, of a native call. */
static __always_inline __u64 fc_argument(__u64 regs, __u32 n)
{
	if (FC_EXISTS(pt_regs___x86, orig_ax)) {
		struct pt_regs___x86 *x86 = (void *)regs;

		return n == 0 ? BPF_CORE_READ(x86, di) : n == 1 ? BPF_CORE_READ(x86, si) :
		       n == 2 ? BPF_CORE_READ(x86, dx) : n == 3 ? BPF_CORE_READ(x86, r10) :
		       n == 4 ? BPF_CORE_READ(x86, r8) : BPF_CORE_READ(x86, r9);
	}
	if (FC_EXISTS(pt_regs___arm64, syscallno))
		return BPF_CORE_READ((struct pt_regs___arm64 *)regs, regs[n]);
	return 0;
}

static __always_inline struct file *fc_file_of(__u64 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file *file = NULL, **fds;

	if (!table || (__u32)fd >= BPF_CORE_READ(table, max_fds))
		return NULL;
	fds = BPF_CORE_READ(table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), fds + (__u32)fd);
	return file;
}

#include "when.bpf.h"
#include "syscall_match.bpf.h"

static __always_inline bool fc_passes(const struct fc_call_slot *slot, __u32 number, __u32 call,
				      const struct fc_caller *caller)
{
	if (slot->flags & FC_CALL_UID && (__u32)bpf_get_current_uid_gid() != slot->uid)
		return false;
	if (slot->flags & FC_CALL_WHEN && !fc_arguments_match(number, call, caller->regs))
		return false;
	if (slot->flags & FC_CALL_EXE && !fc_exe_matches(number))
		return false;
	if (!slot->fd_types && !(slot->flags & (FC_CALL_FILES | FC_CALL_DEVICE | FC_CALL_NET)))
		return true;
	return fc_subject_passes(slot, number, call, caller);
}

/* ---- how often ---- */

/* The n-th draw of a seed is always the same (the finalizer of splitmix64). */
static __always_inline bool fc_drawn(const struct fc_call_slot *slot, __u64 n)
{
	__u64 z = slot->seed + (n + 1) * 0x9e3779b97f4a7c15ULL;

	if (slot->rate_ppm >= FC_ALWAYS_PPM)
		return true;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	z ^= z >> 31;
	return (z >> 32) * FC_ALWAYS_PPM >> 32 < slot->rate_ppm;
}

static __always_inline bool fc_is_due(const struct fc_call_slot *slot, struct fc_call_stats *stats,
				      __u64 n)
{
	if (slot->first && n >= slot->first)
		return false;
	if (slot->every > 1 && (n + 1) % slot->every)
		return false;
	if (!fc_drawn(slot, n))
		return false;
	return !slot->at_most || __sync_fetch_and_add(&stats->taken, 1) < slot->at_most;
}

static __always_inline void fc_note_one(const struct fc_hit_key *key, bool hit, __u64 now)
{
	struct fc_hits *found = bpf_map_lookup_elem(FC_MAP(fc_hits), key);

	if (!found) {
		struct fc_hits fresh = {};

		bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
		bpf_map_update_elem(FC_MAP(fc_hits), key, &fresh, BPF_NOEXIST);
		found = bpf_map_lookup_elem(FC_MAP(fc_hits), key);
		if (!found)
			return;
	}
	__sync_fetch_and_add(&found->seen, 1);
	if (!hit)
		return;
	__sync_fetch_and_add(&found->hits, 1);
	__sync_val_compare_and_swap(&found->first_ns, 0, now);
	found->last_ns = now;
}

/* 1: this slot's fault happens to this call. Looked at once by the verifier. */
FC_SUBPROG_3(int, fc_decide, __u64, slot_no, __u64, call, struct fc_caller *, caller)
{
	__u32 number = slot_no & (FC_MAX_SLOTS - 1);
	struct fc_call_slot *slot = bpf_map_lookup_elem(FC_MAP(fc_call_slots), &number);
	struct fc_call_stats *stats = bpf_map_lookup_elem(FC_MAP(fc_call_stats), &number);
	struct fc_hit_key key = {};
	__u64 now;
	bool hit;

	if (!slot || !stats || !caller || !fc_passes(slot, number, call, caller))
		return 0;
	if (fc_is_spared(slot)) {
		__sync_fetch_and_add(&stats->spared, 1);
		return 0;
	}
	hit = fc_is_due(slot, stats, __sync_fetch_and_add(&stats->seen, 1));
	now = bpf_ktime_get_boot_ns();
	key.slot = number;
	key.generation = slot->generation;
	key.call = call;
	fc_note_one(&key, hit, now);
	key.tgid = bpf_get_current_pid_tgid() >> 32;
	fc_note_one(&key, hit, now);
	if (!hit)
		return 0;
	__sync_fetch_and_add(&stats->hits, 1);
	__sync_val_compare_and_swap(&stats->first_ns, 0, now);
	stats->last_ns = now;
	return 1;
}

/* The slot that fails this call, or -1. Where several would, the lowest does. */
FC_SUBPROG_3(int, fc_choose, __u64, slots, __u64, call, struct fc_caller *, caller)
{
	if (!caller)
		return -1;
	for (__u64 slot = 0; slot < FC_MAX_SLOTS; slot++) {
		if (!(slots >> slot))
			break;
		if (slots >> slot & 1 && fc_decide(slot, call, caller))
			return slot;
	}
	return -1;
}

/* Whether the call at this point fails; then `value` is what it returns. */
static __always_inline bool fc_fails(__u32 point, struct fc_caller *caller, __s64 *value)
{
	__u32 zero = 0, number;
	__u64 *armed = bpf_map_lookup_elem(FC_MAP(fc_points), &point), slots;
	struct fc_control *control = bpf_map_lookup_elem(FC_MAP(fc_control), &zero);
	struct fc_call_slot *slot;
	int chosen;

	if (!armed || !control || !*armed)
		return false;
	slots = *armed & fc_scope(control);
	if (!slots)
		return false;
	chosen = fc_choose(slots, point & (FC_MAX_CALLS - 1), caller);
	if (chosen < 0)
		return false;
	number = chosen;
	slot = bpf_map_lookup_elem(FC_MAP(fc_call_slots), &number);
	if (!slot)
		return false;
	*value = slot->value;
	return true;
}

#endif
