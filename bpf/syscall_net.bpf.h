/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The ends of the socket behind a call: ports, and the other end's address.
 * Included by syscall_match.bpf.h, whose enum fc_named says where a call names an address.
 */
#ifndef FAULTCTL_SYSCALL_NET_BPF_H
#define FAULTCTL_SYSCALL_NET_BPF_H

#define FC_PORTS 8
#define FC_NETS 4
#define FC_AF_INET 2
#define FC_AF_INET6 10
#define FC_MAPPED_V4 0xffff0000U /* the third word of ::ffff:a.b.c.d, big-endian in memory */

/* ---- the kernel's structures, only the members that are read ---- */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

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
	__uint(max_entries, FC_MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct fc_call_nets);
} fc_call_nets SEC(".maps");
#endif

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

#endif
