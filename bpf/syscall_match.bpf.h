/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What a call is about: the file behind it, its path, its device, the ends of its socket.
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
#define FC_PORTS 8
#define FC_NETS 4
#define FC_AF_INET 2
#define FC_AF_INET6 10
#define FC_S_IFBLK 6
#define FC_S_IFSOCK 12
#define FC_MAPPED_V4 0xffff0000U /* the third word of ::ffff:a.b.c.d, big-endian in memory */

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

struct in6_addr {
	__u32 unused[4];
};

struct sock_common {
	unsigned short skc_family;
	__u16 skc_num;
	__u16 skc_dport;
	__u32 skc_daddr;
	struct in6_addr skc_v6_daddr;
};

struct sock {
	struct sock_common __sk_common;
};

struct socket {
	struct sock *sk;
};

struct socket_alloc {
	struct socket socket;
	struct inode vfs_inode;
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

struct fc_net {
	__u32 address[4], mask[4]; /* as in memory; IPv4 as ::ffff:a.b.c.d */
};

struct fc_call_nets {
	__u16 port[FC_PORTS]; /* host order; 0: no more */
	struct fc_net net[FC_NETS];
	__u32 nets;
	__u32 unused;
};
_Static_assert(sizeof(struct fc_call_nets) == 152, "layout is shared with syscall_maps.py");

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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct fc_call_nets);
} fc_call_nets SEC(".maps");

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

/* ---- sockets ---- */
struct fc_end {
	__u32 address[4];
	__u32 port;
	__u32 known;
};

static __always_inline void fc_set_end(struct fc_end *end, __u32 v4)
{
	end->address[2] = FC_MAPPED_V4;
	end->address[3] = v4;
	end->known = 1;
}

/* A sockaddr in the caller's memory. */
static __always_inline void fc_read_sockaddr(struct fc_end *end, __u64 at)
{
	struct {
		__u16 family, port;
		__u32 word;
	} head = {};

	if (!at || bpf_probe_read_user(&head, sizeof(head), (void *)at))
		return;
	if (head.family == FC_AF_INET)
		fc_set_end(end, head.word);
	else if (head.family == FC_AF_INET6 &&
		 !bpf_probe_read_user(end->address, sizeof(end->address), (void *)(at + 8)))
		end->known = 1;
	end->port = __builtin_bswap16(head.port);
}

static __always_inline void fc_named_end(struct fc_end *end, __u64 regs, __u8 named)
{
	__u64 at = 0;

	if (!regs)
		return;
	if (named == FC_NAMED_SECOND)
		at = fc_argument(regs, 1);
	else if (named == FC_NAMED_FIFTH)
		at = fc_argument(regs, 4);
	else if (named == FC_NAMED_MSGHDR)
		bpf_probe_read_user(&at, sizeof(at), (void *)fc_argument(regs, 1));
	fc_read_sockaddr(end, at);
}

static __always_inline void fc_peer_end(struct fc_end *end, struct sock *sock)
{
	__u16 family = BPF_CORE_READ(sock, __sk_common.skc_family);

	end->port = __builtin_bswap16(BPF_CORE_READ(sock, __sk_common.skc_dport));
	if (family == FC_AF_INET)
		fc_set_end(end, BPF_CORE_READ(sock, __sk_common.skc_daddr));
	else if (family == FC_AF_INET6 && FC_EXISTS(sock_common, skc_v6_daddr))
		bpf_core_read(end->address, sizeof(end->address), &sock->__sk_common.skc_v6_daddr);
}

static __always_inline bool fc_in_net(const struct fc_net *net, const struct fc_end *end)
{
	__u32 differs = 0;

	for (__u32 word = 0; word < 4; word++)
		differs |= (end->address[word] & net->mask[word]) ^ net->address[word];
	return !differs;
}

/* Either end's port, and the other end's address: the one that the call names, or the peer's. */
static __always_inline bool fc_net_matches(struct inode *inode, __u32 slot, __u64 regs, __u8 named)
{
	struct fc_call_nets *wanted = bpf_map_lookup_elem(FC_MAP(fc_call_nets), &slot);
	struct socket_alloc *alloc = (void *)inode - FC_OFFSET(socket_alloc, vfs_inode);
	struct sock *sock = BPF_CORE_READ(alloc, socket.sk);
	struct fc_end other = {}, peer = {};
	__u32 local = BPF_CORE_READ(sock, __sk_common.skc_num);
	__u16 family = BPF_CORE_READ(sock, __sk_common.skc_family);
	bool found;

	if (!wanted || (family != FC_AF_INET && family != FC_AF_INET6))
		return false;
	fc_named_end(&other, regs, named);
	fc_peer_end(&peer, sock);
	found = !wanted->port[0];
	for (__u32 at = 0; at < FC_PORTS; at++) {
		__u32 port = wanted->port[at];

		if (port && (port == local || port == peer.port || port == other.port))
			found = true;
	}
	if (!found || !wanted->nets)
		return found;
	for (__u32 at = 0; at < FC_NETS; at++) {
		if (at < wanted->nets && fc_in_net(&wanted->net[at], other.known ? &other : &peer))
			return true;
	}
	return false;
}

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
